"""Failures across a channel: the error itself, and where it came from, as text."""

import traceback

import msgspec

from protocols.errors import Aborted, ConductorError, DataFault, InvariantError, PortFailed, Transient
from protocols.messages import Message
from protocols.wire import decode_error, encode_error

_LONGEST = 8000  # characters of a traceback; its end says most
_EXPECTED = (Transient, DataFault, Aborted)


class Elsewhere(Exception):
    """The cause of an error that was raised in another process: its traceback."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0].rstrip()}"


class _Failure(Message, frozen=True, kw_only=True):
    """An error on its way.

    Attributes:
        error: As ``encode_error`` gives it.
        traceback: Empty for what happens every day.
        bug: Whether nobody foresaw it, so that people want to see the traceback.
    """

    error: bytes
    traceback: str
    bug: bool


def encode_failure(error: Exception) -> bytes:
    """Encode whatever a call raised; what is no ``ConductorError`` becomes a ``PortFailed`` that names it."""
    text = "" if _is_expected(error) else "".join(traceback.format_exception(error))[-_LONGEST:]
    bug = _is_bug(error)
    if not isinstance(error, ConductorError):
        error = _renamed(error)
    try:
        encoded = encode_error(error)
    except (TypeError, ValueError):  # a user's own error, with facts that no message holds
        encoded = encode_error(_renamed(error))
    return msgspec.msgpack.encode(_Failure(error=encoded, traceback=text, bug=bug))


def decode_failure(data: bytes) -> ConductorError:
    """Return the error, which has the traceback of a bug as a note, and any other as its cause.

    Raises:
        msgspec.MsgspecError, LookupError: The bytes are no failure.
    """
    failure = msgspec.msgpack.decode(data, type=_Failure)
    error = decode_error(failure.error)
    if failure.bug:
        error.add_note(f"in the worker:\n{failure.traceback.rstrip()}")
    elif failure.traceback:
        error.__cause__ = Elsewhere(failure.traceback)
    return error


def _renamed(error: Exception) -> PortFailed:
    return PortFailed(f"{type(error).__name__}: {error}")


def _is_expected(error: Exception) -> bool:
    return isinstance(error, _EXPECTED) and error.__cause__ is None


def _is_bug(error: Exception) -> bool:
    if not isinstance(error, ConductorError):
        return True
    foreign = error.__cause__ is not None and not isinstance(error.__cause__, ConductorError)
    return isinstance(error, InvariantError) or (type(error) is PortFailed and foreign)

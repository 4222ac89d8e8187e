"""What crosses the socket, a JSON object a line."""

from typing import Literal

import msgspec

from conductor.core.explanation import Explanation
from conductor.core.status import RunStatus
from protocols.messages import Message

Command = Literal["status", "why", "stop", "checkpoint", "scale"]


class Request(Message, frozen=True, kw_only=True):
    """What is asked of a run.

    Attributes:
        command: ``status``: where it stands. ``why``: what it waits for, in words. ``stop``: end as at a first signal.
            ``checkpoint``: write one after the current step. ``scale``: bring ``role`` to ``size`` workers.
    """

    command: Command
    role: str = ""
    size: int = 0


class Reply(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The answer.

    Attributes:
        error: Why there is none.
        status: Where the run stands, for ``status`` and ``why``.
        why: What it waits for, for ``why``.
        done: What was done: ``stopping``, the folder of the checkpoint, or the change of size in words.
        refused: Whether it is the request that is wrong, and not the run.
    """

    error: str = ""
    refused: bool = False
    status: RunStatus | None = None
    why: Explanation | None = None
    done: str = ""


def encode(message: Request | Reply) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"

"""User functions named in the job: found, or reported as a problem with the user's own error."""

import importlib
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from protocols import adapters
from protocols.errors import Problem

_MEND = "name it module:function, or path.py:function next to the job file"


def find_function(name: str, job_dir: str) -> Callable[..., Any]:
    """Import a user's function.

    Raises:
        FunctionNotFound: It cannot be imported, for whatever reason, or it is not callable.
    """
    try:
        found = adapters.load_object(name, job_dir)
    except (Exception, SystemExit) as exc:  # whatever the module does while it is imported
        if isinstance(exc, AttributeError) and not _user_frames(exc):
            where, _, function = name.partition(":")
            raise FunctionNotFound(f"{where} has no function '{function}'") from exc
        raise FunctionNotFound(f"it cannot be imported: {user_error(exc)}") from exc
    if not callable(found):
        raise FunctionNotFound(f"it is {type(found).__name__}, not a function")
    return found


class FunctionNotFound(Exception):
    """Says why there is no such function."""

    def problem(self, field: str, name: str) -> Problem:
        """Return it as a problem of the job."""
        return Problem(field=field, value=repr(name), why=str(self), mend=_MEND)


class Caught:
    """Keeps whatever user code that is not async raises in the block.

    CancelledError too: where nothing is awaited it can only be the user's.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        self.error = error
        return True


def user_error(exc: BaseException) -> str:
    """Return one line about an error of user code: what it is and, where it can be told, in which line."""
    what = traceback.format_exception_only(exc)[-1].strip()
    if isinstance(exc, SyntaxError):
        return f"{what} ({exc.filename}:{exc.lineno})"
    frames = _user_frames(exc)
    return f"{what} ({frames[-1].filename}:{frames[-1].lineno})" if frames else what


def _user_frames(exc: BaseException) -> list[traceback.FrameSummary]:
    ours = {__file__, adapters.__file__, importlib.__file__}
    frames = traceback.extract_tb(exc.__traceback__)
    return [frame for frame in frames if frame.filename not in ours and not frame.filename.startswith("<frozen")]

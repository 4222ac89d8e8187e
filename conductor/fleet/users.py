"""Code of the user's that the controller calls: made by its name in the job, contained and bounded."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import anyio

from protocols.adapters import load_object
from protocols.aio import NoResult, contained
from protocols.errors import ConfigError, Problem
from protocols.sections import Section


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a call of a user's code came to: its ``value``, or why it ``failed``, for people.

    ``cut``: it took too long.
    """

    value: Any = None
    failed: str | None = None
    cut: bool = False


async def ask(call: Callable[[], Awaitable[Any]], *, within_s: float) -> Said:
    """Call a user's code, whatever it does.

    What blocks the event loop cannot be helped, nor what cannot be cancelled: a call in a thread is one unless it is
    abandoned (``anyio.to_thread.run_sync(..., abandon_on_cancel=True)``).

    Cancelling: passes through to it.
    """
    try:
        with anyio.move_on_after(within_s) as scope:
            value = await contained(call)
    except NoResult:
        return Said(failed="it was cancelled from within")
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - the caller tells of it
        return Said(failed=f"{type(exc).__name__}: {exc}")
    if scope.cancelled_caught:
        return Said(failed=f"it did not end within {within_s:g} s", cut=True)
    return Said(value=value)  # pyright: ignore[reportPossiblyUnboundVariable] - bound unless it was cut


def find_unusable(field: str, section: Section, points: Collection[str], job_dir: str) -> Iterable[Problem]:
    """Find what keeps a class of the user's from being called: it is not there, or has no method that would be.

    Args:
        field: Where the job names it, ``fleet.hooks[0]``.
        section: Its name, ``module:name`` or ``path.py:name``, and what it is made with.
        points: Methods that may be called.
        job_dir: Where a relative path starts.
    """
    try:
        found = load_object(section.kind, job_dir)
    except Exception as exc:  # noqa: BLE001 - a user's module may raise anything while it is imported
        why = f"it cannot be imported: {type(exc).__name__}: {exc}"
        mend = "name it module:name, or path.py:name next to the job file"
        yield Problem(field=f"{field}.kind", value=repr(section.kind), why=why, mend=mend)
        return
    there = [name for name in points if hasattr(found, name)]
    if not there:
        why, mend = "it has none of the methods that would be called", f"give it some of {', '.join(points)}"
        yield Problem(field=f"{field}.kind", value=repr(section.kind), why=why, mend=mend)
    for name in there:
        if not inspect.iscoroutinefunction(getattr(found, name)):
            why, mend = f"its {name} is no coroutine", f"write async def {name}"
            yield Problem(field=f"{field}.kind", value=repr(section.kind), why=why, mend=mend)


def make(field: str, section: Section, job_dir: str) -> object:
    """Make an object of a user's class, with its options by name.

    Raises:
        ConfigError: It refuses them, or cannot be imported any more.
    """
    try:
        return load_object(section.kind, job_dir)(**section.options)
    except Exception as exc:  # a user's class may raise anything
        why, mend = f"it cannot be made: {type(exc).__name__}: {exc}", "see its arguments"
        raise ConfigError([Problem(field=field, value=repr(section.kind), why=why, mend=mend)]) from exc

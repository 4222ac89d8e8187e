"""Blocking work on the disk, in a thread that is never left behind."""

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

from protocols.aio import NoResult, bounded_shield, contained
from protocols.errors import DeadlineExceeded, ForeignCancellation

T = TypeVar("T")


async def on_disk(what: str, seconds: float, work: Callable[[], T]) -> T:
    """Do blocking work in a thread.

    Cancelling: what has begun is finished first, or half of it would go on behind the run's back; only a disk
    that hangs is left alone, after ``seconds``.

    Raises:
        DeadlineExceeded: It did not end within ``seconds``; ``what`` names it.
        OSError: The disk refuses.
    """

    async def finish() -> T:
        box: list[T] = []
        with bounded_shield(seconds):
            box.append(await anyio.to_thread.run_sync(work, abandon_on_cancel=True))
        if not box:
            raise DeadlineExceeded(what=what, deadline_s=seconds)
        return box[0]

    try:
        return await contained(finish)
    except NoResult as exc:
        raise ForeignCancellation(task=what) from exc

"""What was acquired is given back on every way out, and a failing teardown hides no error."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio

from protocols.aio import owned
from protocols.errors import PortFailed


@asynccontextmanager
async def undoing(undo: Callable[[], Awaitable[None]], stop_s: float) -> AsyncGenerator[None]:
    """Run ``undo`` after the block, whatever became of it; acquire inside the block.

    Args:
        undo: Covers every step of the block, also those that were not reached; it raises ``PortFailed``.
        stop_s: Its deadline in seconds; it is shielded for as long.

    Raises:
        PortFailed: It failed, and nothing had failed before; else it is a note on that error.
    """
    error: BaseException | None = None
    try:
        yield
    except BaseException as exc:
        error = exc
        raise
    finally:
        with anyio.move_on_after(stop_s, shield=True) as scope:
            await _undo(undo, error)
        if scope.cancelled_caught:
            _tell(f"not ended within {stop_s:g} s", error)


async def _undo(undo: Callable[[], Awaitable[None]], error: BaseException | None) -> None:
    try:
        await undo()
    except PortFailed as exc:
        _tell(str(exc), error)


def _tell(teardown: str, error: BaseException | None) -> None:
    """Make a failing teardown a note on the error that was there before it, or an error of its own."""
    if error is None:
        raise PortFailed(teardown)
    error.add_note(f"teardown: {teardown}")


async def undo_each(names: Sequence[str], undo: Callable[[str], Awaitable[None]]) -> None:
    """Undo what was acquired under each of some names, all at once: one that hangs must not keep the others.

    Raises:
        PortFailed: Some could not be undone; it names them.
    """
    failed: dict[str, Exception] = {}

    async def one(name: str) -> None:
        try:
            await owned(f"end of {name}", partial(undo, name))
        except Exception as exc:  # noqa: BLE001 - told below
            failed[name] = exc

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(one, name, name=f"end of {name}")
    if failed:
        raise PortFailed(f"could not end {', '.join(f'{name} ({failed[name]})' for name in names if name in failed)}")

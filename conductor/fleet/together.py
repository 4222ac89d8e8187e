"""Several acts of one group at once: all of them, or the first failure as it is."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import anyio

from protocols.aio import owned


async def all_or_first(
    acts: Mapping[str, Callable[[], Awaitable[None]]], beside: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Do everything at once. The first act that fails cancels the others and is raised, in no group.

    Args:
        acts: By the name of their task.
        beside: Runs as long as they do; it may fail as they may.

    Raises:
        Exception: Of the act that failed first.
    """
    failures: list[Exception] = []
    left = set(acts)

    async def guarded(name: str, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await owned(name, act)
        except Exception as exc:  # noqa: BLE001 - raised below
            failures.append(exc)
            tasks.cancel_scope.cancel()
        left.discard(name)
        if not left:
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        if beside is not None:
            tasks.start_soon(partial(guarded, "beside", beside), name="beside")
        for name, act in acts.items():
            tasks.start_soon(guarded, name, act, name=name)
    if failures:
        raise failures[0]

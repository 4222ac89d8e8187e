"""Calls that are made again until they succeed: pauses grow, and the cause has a budget."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from conductor.context import RunContext
from protocols.aio import owned
from protocols.errors import PayloadLost, Transient, WorkerLost
from protocols.pauses import pause_s

T = TypeVar("T")


async def patiently(
    ctx: RunContext, what: str, who: str, call: Callable[[], Awaitable[T]], *, final: type[Transient] = WorkerLost
) -> T:
    """Make a call until it succeeds, after growing pauses, within the budget of its cause.

    Args:
        ctx: The run.
        what: The cause, ``grading``: what it is called by everyone who needs it.
        who: For whom.
        call: Made once or more; safe to repeat.
        final: Failures that no repetition makes up for, beside ``PayloadLost``.

    Raises:
        Transient: A final one; or this call failed again while others of the same cause succeeded, so it is not the
            cause that fails.
        BudgetExhausted: The cause failed too often.
    """
    patience = ctx.patience(what)
    failures, others = 0, patience.successes
    while True:
        began = anyio.current_time()
        try:
            result = await call()
        except (PayloadLost, final):
            raise
        except Transient as exc:
            failures += 1
            if failures > 1 and patience.successes != others:
                raise
            others = patience.successes
            patience.fail(exc, began=began, now=anyio.current_time())
            ctx.log.warning("call.retried", what=what, who=who, failures=patience.failures, error=str(exc))
            await anyio.sleep(pause_s(max(failures, patience.failures), who))
        else:
            patience.succeed()
            return result


async def release_all(ctx: RunContext, owners: Iterable[str]) -> None:
    """Release payloads of many owners at once: each takes a message there and back."""
    async with anyio.create_task_group() as tasks:
        for owner in owners:
            tasks.start_soon(owned, "release", release, ctx, owner, name=f"release of {owner}")


async def release(ctx: RunContext, owner: str) -> None:
    """Release payloads that nobody needs any more; where that fails, the end of the run does it."""
    try:
        await ctx.ports.backend.payloads.release(owner)
    except Transient as exc:
        ctx.log.warning("payloads.kept", owner=owner, error=str(exc))

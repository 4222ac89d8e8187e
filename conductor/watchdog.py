"""The watchdog: ends a run that stands still, with a verdict that says who waits for what."""

import anyio

from conductor.context import RunContext
from conductor.core.explanation import explain_engines, stalled
from conductor.status import ask_engines, take_status
from protocols.errors import Stalled


async def watch(ctx: RunContext) -> None:
    """Wait until nothing has moved for ``deadlines.stall``, which outlasts every other wait.

    A run that ends is not watched: what is stopped then has deadlines of its own, and failed before.

    Raises:
        Stalled: The verdict. It is the run's first failure, whatever fails while the engines are asked.
    """
    stall_s = ctx.cfg.deadlines.stall_s
    # what moves does so a thousand times a second, and this wakes once
    while (due := ctx.waits.moved + stall_s) > anyio.current_time():  # noqa: ASYNC110
        await anyio.sleep_until(due)
    if ctx.failures.any:
        await anyio.sleep_forever()
    error = Stalled(stalled(take_status(ctx)))
    ctx.failures.remember("watchdog", error)
    for sentence in explain_engines(await ask_engines(ctx), served=ctx.publication.served):
        error.add_note(sentence)
    raise error

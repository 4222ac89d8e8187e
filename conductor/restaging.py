"""Staged weights may lie in the process that staged them, and go with it: then they are staged and published again.

Nothing else would bring them back. The next weights come with the next step, that needs groups, and those engines that
found nothing to load.
"""

import anyio

from conductor.context import RunContext
from conductor.stages import publish, train


async def run(ctx: RunContext) -> None:
    """Stage and publish the newest weights again after a process of the trainer was replaced, until cancelled."""
    while True:
        await ctx.rank_replaced.wait()
        ctx.rank_replaced = anyio.Event()
        async with ctx.trainer_turn:
            await train.stage_again(ctx)
        ctx.log.info("weights.staged_again", version=ctx.trained)
        publish.cut(ctx)
        async with ctx.engines_turn:
            await publish.publish_pending(ctx)

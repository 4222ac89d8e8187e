"""Publish: versions of staged weights in; engines that serve the newest of them, and versions served out.

Waits for the engines, at most ``deadlines.publish``. Versions that were overtaken while a publish ran are
skipped. Groups that would be over age under the new weights are interrupted, if the job's sampler says so.
Admission grants groups for a version once the engines have confirmed it.
"""

from contextlib import suppress

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from conductor.abort import interrupt
from conductor.context import RunContext
from conductor.core.groups import OpenGroups
from conductor.core.lease import Lease
from conductor.patience import release
from conductor.stages.evaluate import evaluate_if_due
from protocols.inference import PublishReceipt, Readiness, WeightsManifest
from protocols.messages import WeightVersion


async def run(
    ctx: RunContext, staged: MemoryObjectReceiveStream[WeightVersion], served: MemoryObjectSendStream[WeightVersion]
) -> None:
    """Publish whatever is staged, newest first; what is to be evaluated is, before anything else is published.

    Where engines are reserved for that it is told of, and nothing waits for it.
    """
    async with ctx.engines_turn:
        await _evaluate(ctx, served)  # a run that goes on may have been ended before it came to it
    async with anyio.create_task_group() as group:
        async for _ in staged:
            for lease in over_age(ctx):
                ctx.start(group, f"interrupt {lease.lease_id}", interrupt, ctx, lease)
            async with ctx.engines_turn:
                await publish_pending(ctx)
                await _evaluate(ctx, served)


async def _evaluate(ctx: RunContext, served: MemoryObjectSendStream[WeightVersion]) -> None:
    if ctx.reserved is None:
        await evaluate_if_due(ctx)
    else:
        with suppress(anyio.WouldBlock):  # one that waits there already means: whatever is newest
            served.send_nowait(ctx.publication.serving)


def over_age(ctx: RunContext) -> list[Lease]:
    """Return the groups that are being generated and would be too old if they went on."""
    names = ctx.sampler.interrupt(OpenGroups(ctx.table, ctx.publication.serving), version=ctx.trained)
    return [lease for lease in map(ctx.table.__getitem__, names) if lease.generating]


async def publish_pending(ctx: RunContext) -> None:
    """Reconcile the engines and publish the newest staged weights; do nothing when there are none.

    The caller has the engines' weights to itself. Where ``cut`` ends a publish, the newest are published instead.
    """
    while (manifest := ctx.publication.take()) is not None:
        if await _publish(ctx, manifest):
            return
        if ctx.publication.staged != manifest.version:
            await release(ctx, manifest.payload.owner)


def cut(ctx: RunContext) -> None:
    """End the publish that goes on, if one does: what the engines load may be gone, and is staged again."""
    if ctx.publishing is not None:
        ctx.publishing.cancel()


def _tell_of_lost(ctx: RunContext, readiness: Readiness) -> None:
    """Say which engines are gone and which are back, once each and not at every publish."""
    if more := readiness.lost - ctx.engines_lost:
        ctx.log.warning("engines.lost", members=sorted(more))
    if back := ctx.engines_lost & (readiness.members | readiness.stale):
        ctx.log.info("engines.back", members=sorted(back))
    ctx.engines_lost = readiness.lost


async def _publish(ctx: RunContext, manifest: WeightsManifest) -> bool:
    """Publish; return False where that was cut."""
    began, began_s = anyio.current_time(), ctx.seconds
    receipt: PublishReceipt | None = None
    with anyio.CancelScope() as ctx.publishing:
        _tell_of_lost(ctx, await ctx.ports.inference.prepare_rollout())
        receipt = await ctx.ports.inference.publish(manifest)
    ctx.publishing = None
    if receipt is None:
        return False
    before = ctx.publication.confirm(manifest)
    ctx.admission.version = manifest.version - ctx.first_version
    ctx.publish_s = anyio.current_time() - began
    ctx.publishes.append((began_s, ctx.seconds))
    ctx.changed.ring()
    ctx.log.debug(
        "weights.published",
        version=manifest.version,
        confirmed=len(receipt.confirmed),
        stale=sorted(receipt.stale),
        size_bytes=manifest.size_bytes,
    )
    if before is not None:
        await release(ctx, before.payload.owner)
    return True

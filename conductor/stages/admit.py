"""Admit: prompts, readmitted and reopened groups in, lease ids out.

Groups that a resume reopened come before new prompts and under the same law. Waits for the admission law to
grant a group, and at the end of an epoch for its last batch. Ends when the run wants no more groups, or the
prompts are exhausted, and nothing that runs can come back.
"""

from anyio.streams.memory import MemoryObjectSendStream

from conductor.context import RunContext
from conductor.core.lease import Lease, State
from conductor.core.leases import open_groups
from protocols.errors import BudgetExhausted, DataFault
from protocols.ledger import Admitted, Dropped, LedgerEvent, Readmitted
from protocols.messages import LeaseId
from protocols.prompts import Prompt

_BAD_PROMPTS_IN_A_ROW = 100


async def run(ctx: RunContext, admitted: MemoryObjectSendStream[LeaseId]) -> None:
    """Lend out prompts until the run needs no more."""
    held: Prompt | None = None
    exhausted = False
    while True:
        if ctx.readmitted:
            await admitted.send(ctx.readmitted.popleft())
        elif not ctx.table.running and (_used_up(ctx, exhausted=exhausted) or _trained_enough(ctx)):
            await _drop_surplus(ctx)
            return
        elif not exhausted and _may_admit(ctx):
            reopened = ctx.table.reopened
            prompt = reopened.prompt if reopened else held or await _draw(ctx)
            held = None
            if prompt is None:
                exhausted = True
                ctx.gate.exhaust()
            elif ctx.gate.offer(prompt.epoch, ctx.table.tally):
                await admitted.send(await (_readmit(ctx, reopened) if reopened else _admit(ctx, prompt)))
            elif reopened is None:
                held = prompt
            ctx.changed.ring()
        else:
            await ctx.changed.wait()


def _used_up(ctx: RunContext, *, exhausted: bool) -> bool:
    """Return whether there are no more prompts, and no group that could be begun anew for its age."""
    return exhausted and not ctx.table.count(State.GRADED)


def _trained_enough(ctx: RunContext) -> bool:
    return not ctx.admission.wants_more(ctx.table.tally)


def _may_admit(ctx: RunContext) -> bool:
    if ctx.gate.ended:
        return False  # the next epoch begins when the last batch of this one is claimed
    table = ctx.table
    granted = ctx.admission.grants(table.tally, accepted=table.accepted, running=table.running)
    if granted <= 0:
        return False
    return ctx.sampler.admit(granted, open_groups(table, ctx.publication.serving), version=ctx.trained) > 0


async def _admit(ctx: RunContext, prompt: Prompt) -> LeaseId:
    lease_id = ctx.table.next_lease_id()
    await ctx.record(Admitted(lease_id=lease_id, prompt=prompt, group_size=ctx.cfg.group_size))
    return lease_id


async def _readmit(ctx: RunContext, lease: Lease) -> LeaseId:
    await ctx.record(Readmitted(lease_id=lease.lease_id, attempt=lease.attempt + 1))
    return lease.lease_id


async def _drop_surplus(ctx: RunContext) -> None:
    """Give up reopened groups that the run needs no more: fewer were filtered than before they were reopened."""
    surplus = ctx.table.in_state(State.REOPENED)
    events: list[LedgerEvent] = [Dropped(lease_id=lease.lease_id, reason="surplus") for lease in surplus]
    await ctx.record(*events)


async def _draw(ctx: RunContext) -> Prompt | None:
    last = ""
    for _ in range(_BAD_PROMPTS_IN_A_ROW):
        try:
            return await ctx.ports.prompts.draw()
        except DataFault as exc:
            last = str(exc)
            ctx.window.failed(type(exc).__name__)
            ctx.log.warning("prompt.skipped", error=last)
    raise BudgetExhausted(
        what="unreadable prompts in a row",
        spent=_BAD_PROMPTS_IN_A_ROW,
        allowed=_BAD_PROMPTS_IN_A_ROW - 1,
        field="prompts",
        last=last,
    )

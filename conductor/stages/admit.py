"""Admit: prompts and readmitted groups in, lease ids out.

Waits for the admission law to grant a group, and at the end of an epoch for its last batch. Ends when the
run wants no more groups, or the prompts are exhausted, and nothing that runs can come back.
"""

from anyio.streams.memory import MemoryObjectSendStream

from conductor.context import RunContext
from protocols.errors import BudgetExhausted, DataFault
from protocols.ledger import Admitted
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
        elif not ctx.table.running and (exhausted or _trained_enough(ctx)):
            return
        elif not exhausted and _may_admit(ctx, held):
            held = held or await _draw(ctx)
            if held is None:
                exhausted = True
                ctx.gate.exhaust()
            elif ctx.gate.offer(held.epoch):
                prompt, held = held, None
                await admitted.send(await _admit(ctx, prompt))
            ctx.changed.ring()
        else:
            await ctx.changed.wait()


def _trained_enough(ctx: RunContext) -> bool:
    return not ctx.admission.wants_more(committed=ctx.table.accounts.committed)


def _may_admit(ctx: RunContext, held: Prompt | None) -> bool:
    if held is not None and ctx.gate.ended:
        return False  # the next epoch begins when the last batch of this one is claimed
    return ctx.admission.grants(accepted=ctx.table.accepted, running=ctx.table.running) > 0


async def _admit(ctx: RunContext, prompt: Prompt) -> LeaseId:
    lease_id = ctx.table.next_lease_id()
    await ctx.record(Admitted(lease_id=lease_id, prompt=prompt, group_size=ctx.cfg.group_size))
    return lease_id


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

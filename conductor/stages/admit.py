"""Admit: prompts, readmitted and reopened groups in, waves of lease ids out.

Groups that a resume reopened come before new prompts and under the same law. Waits for the admission law to
grant a group, and at the end of an epoch for its last batch. Ends when the run wants no more groups, or the
prompts are exhausted, and nothing that runs can come back.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from conductor import spool
from conductor.context import RunContext
from conductor.core.groups import OpenGroups
from conductor.core.lease import Lease, State
from conductor.patience import patiently
from protocols.errors import BudgetExhausted, DataFault
from protocols.ledger import Admitted, Dropped, LedgerEvent, Readmitted
from protocols.messages import LeaseId, lease_number
from protocols.prompts import Prompt

_BAD_PROMPTS_IN_A_ROW = 100
_WAVE_S = 0.02  # for so long prompts are drawn that start together: they share the record and the engines' steps


async def run(ctx: RunContext, admitted: MemoryObjectSendStream[tuple[LeaseId, ...]]) -> None:
    """Lend out prompts until the run needs no more."""
    supply = _Supply()
    while True:
        if ctx.readmitted:
            wave = tuple(ctx.readmitted)
            ctx.readmitted.clear()
            await admitted.send(wave)
        elif not ctx.table.running and (_used_up(ctx, supply) or _trained_enough(ctx)):
            await _drop_surplus(ctx)
            return
        elif not supply.empty and (granted := _granted(ctx)) > 0:
            wave = await _admit_some(ctx, supply, granted)
            if supply.empty:
                ctx.gate.exhaust()
            if wave:
                await admitted.send(wave)
            ctx.changed.ring()
        else:
            await ctx.changed.wait()


class _Supply:
    """Prompts that were drawn and are not admitted yet, and whether more will come."""

    def __init__(self) -> None:
        self._drawn: deque[Prompt] = deque()
        self._exhausted = False

    @property
    def empty(self) -> bool:
        """Whether there are no prompts any more."""
        return self._exhausted and not self._drawn

    async def wave(self, ctx: RunContext, most: int) -> tuple[Prompt, ...]:
        """Return the prompts that may be admitted together, without taking them away.

        They are ``most`` at the most, of one epoch unless epochs are carried over, and those that come at once:
        a slow source does not hold up the first.
        """
        until = anyio.current_time() + _WAVE_S
        while (
            len(self._drawn) < most and not self._exhausted and (not self._drawn or self._joins(ctx, self._drawn[-1]))
        ):
            prompt = await _draw(ctx)
            if prompt is None:
                self._exhausted = True
            else:
                self._drawn.append(prompt)
            if anyio.current_time() > until:
                break
        return tuple(takewhile(lambda prompt: self._joins(ctx, prompt), islice(self._drawn, most)))

    def take(self, prompts: int) -> None:
        """Take away the first ``prompts``: they are being admitted."""
        for _ in range(prompts):
            self._drawn.popleft()

    def _joins(self, ctx: RunContext, prompt: Prompt) -> bool:
        """Return whether a prompt may be admitted together with the first."""
        return ctx.gate.remainder == "carry" or prompt.epoch == self._drawn[0].epoch


async def _admit_some(ctx: RunContext, supply: _Supply, granted: int) -> tuple[LeaseId, ...]:
    """Admit a reopened group, or a wave of prompts in one record; returns the leases to be generated.

    They are none at the end of an epoch, and where a reopened group was finished and is kept.
    """
    reopened = ctx.table.reopened
    if reopened is not None:
        if not ctx.gate.offer(reopened.prompt.epoch, ctx.table.tally) or await spool.take_back(ctx, reopened):
            return ()
        return (await _readmit(ctx, reopened),)
    wave = await supply.wave(ctx, granted)
    if not wave or not ctx.gate.offer(wave[0].epoch, ctx.table.tally):
        return ()
    supply.take(len(wave))
    return await _admit(ctx, wave)


def _used_up(ctx: RunContext, supply: _Supply) -> bool:
    """Return whether there are no more prompts, and no group that could be begun anew."""
    return supply.empty and not (ctx.table.count(State.GRADED) or ctx.table.count(State.CLAIMED))


def _trained_enough(ctx: RunContext) -> bool:
    return not ctx.admission.wants_more(ctx.table.tally)


def _granted(ctx: RunContext) -> int:
    """Return how many groups may be admitted now."""
    if ctx.gate.ended:
        return 0  # the next epoch begins when the last batch of this one is claimed
    table = ctx.table
    granted = ctx.admission.grants(table.tally, accepted=table.accepted, running=table.running)
    if granted <= 0:
        return 0
    return ctx.sampler.admit(granted, OpenGroups(table, ctx.publication.serving), version=ctx.trained)


async def _admit(ctx: RunContext, prompts: Sequence[Prompt]) -> tuple[LeaseId, ...]:
    first = lease_number(ctx.table.next_lease_id())
    leases = tuple(LeaseId(f"L{number}") for number in range(first, first + len(prompts)))
    size = ctx.cfg.group_size
    pairs = zip(leases, prompts, strict=True)
    await ctx.record(*(Admitted(lease_id=lease_id, prompt=prompt, group_size=size) for lease_id, prompt in pairs))
    return leases


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
            return await patiently(ctx, "drawing a prompt", "admit", ctx.ports.prompts.draw)
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

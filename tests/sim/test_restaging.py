"""Weights that went with the process that had staged them come back, and the run goes on."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import structlog

from backends.ledgers.memory import MemoryLedger
from conductor import restaging
from conductor.bootstrap import open_ports
from conductor.context import RunContext
from conductor.core.waits import Waits
from conductor.failures import Failures
from conductor.life import conduct, make_context
from conductor.observe.observer import Unwatched
from conductor.result import RunResult
from protocols.aio import Doorbell, clock, open_tasks
from protocols.errors import WorkerLost
from protocols.incidents import Incident
from protocols.inference import PublishReceipt, WeightsManifest
from protocols.messages import WeightVersion, WorkerId
from tests.support.runs import open_backend_over, run_config, workloads_of
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads

Loss = Callable[[RunContext, ScriptedWorkloads, "Publishes"], Coroutine[Any, Any, None]]


class Publishes:
    """Publishes as a pool does: whoever finds no weights looks again until there are some.

    Args:
        scripted: Whose inference publishes in the end.
        takes_s: How long one takes.

    Attributes:
        begun: Versions, in order.
        at_once: How many went on at the same time, at most.
    """

    def __init__(self, scripted: ScriptedWorkloads, takes_s: float) -> None:
        self._payloads = scripted.payloads
        self._publish = scripted.inference.publish
        self._takes_s = takes_s
        self._running = 0
        self.begun: list[int] = []
        self.at_once = 0
        self._bell = Doorbell()
        scripted.inference.publish = self.publish

    async def publish(self, manifest: WeightsManifest) -> PublishReceipt:
        self.begun.append(manifest.version)
        self._bell.ring()
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        try:
            while True:
                await anyio.sleep(self._takes_s)
                with suppress(WorkerLost):
                    await self._payloads.get(manifest.payload)
                    return await self._publish(manifest)
        finally:
            self._running -= 1

    async def wait_for(self, version: int) -> None:
        """Wait until the publish of a version has begun."""
        while version not in self.begun:
            await self._bell.wait()


async def lose_weights(ctx: RunContext, scripted: ScriptedWorkloads) -> None:
    """A rank is gone with all that it had staged, and another took its place."""
    for held in [held for held in scripted.payloads.held if held[0].startswith("weights/")]:
        del scripted.payloads.held[held]
    await anyio.sleep(3.0)
    incident = Incident(
        role="policy", workers=(WorkerId("policy/0"),), cause="worker", level="worker", attempts=1,
        verdict="restored", detail="its node is gone", version=ctx.trained, seconds=3.0,
    )  # fmt: skip
    await ctx.record_incident(incident)


async def live(
    lose: Loss, *, max_age: int, group_s: float = 1.0, publish_s: float = 0.5
) -> tuple[RunResult, Publishes, ScriptedWorkloads]:
    scripted = scripted_workloads(200, duration_s=lambda _: group_s)
    publishes = Publishes(scripted, publish_s)
    cfg, waits = run_config(steps=8, max_age=max_age), Waits(clock())
    async with (
        open_backend_over(scripted) as backend,
        open_ports(
            cfg,
            backend=backend,
            workloads=workloads_of(scripted, MemoryLedger()),
            waits=waits,
            log=structlog.get_logger(),
        ) as ports,
    ):
        ctx = make_context(cfg, ports, waits, log=structlog.get_logger(), observer=Unwatched(), failures=Failures())
        async with open_tasks() as tasks:
            tasks.start_soon(restaging.run, ctx)
            tasks.start_soon(lose, ctx, scripted, publishes)
            result = await conduct(ctx)
            tasks.cancel_scope.cancel()
    assert publishes.at_once == 1
    return result, publishes, scripted


async def test_weights_that_are_lost_while_they_are_published_are_staged_again() -> None:
    """Issue F: a node took the rank that had staged them; every engine looked for them until the run was given up."""

    async def lose(ctx: RunContext, scripted: ScriptedWorkloads, publishes: Publishes) -> None:
        await publishes.wait_for(3)
        await lose_weights(ctx, scripted)

    result, publishes, scripted = await live(lose, max_age=0)
    assert result.steps == 8
    assert result.accounts.balanced
    assert publishes.begun == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8], "it was cut and begun again"
    assert not scripted.payloads.held, "nothing of any staging is left"


async def test_a_newer_version_that_waits_is_published_instead() -> None:
    """The trainer has only its newest weights: an older version that was being loaded never comes back."""

    async def lose(ctx: RunContext, scripted: ScriptedWorkloads, publishes: Publishes) -> None:
        await publishes.wait_for(3)
        older = ctx.publication.owner(WeightVersion(3))
        await lose_weights(ctx, scripted)
        scripted.payloads.held[older, "a part that another node holds"] = {}
        await publishes.wait_for(7)
        assert older not in {owner for owner, _ in scripted.payloads.held}

    result, publishes, scripted = await live(lose, max_age=3)
    assert result.steps == 8
    assert publishes.begun == [0, 1, 2, 3, 6, 7, 8]
    assert not scripted.payloads.held


async def test_what_is_published_again_and_what_is_trained_next_come_one_after_the_other() -> None:
    """Engines that load two versions at once serve nobody knows which."""

    async def lose(ctx: RunContext, scripted: ScriptedWorkloads, publishes: Publishes) -> None:
        await publishes.wait_for(2)
        await anyio.sleep(5.5)
        await lose_weights(ctx, scripted)

    result, publishes, _ = await live(lose, max_age=3, group_s=3.0, publish_s=5.0)
    assert result.steps == 8
    assert publishes.begun == sorted(publishes.begun)


async def test_weights_that_are_lost_after_they_were_published_are_there_again_for_engines_that_restart() -> None:
    """The contract of ``publish``: what was published stays readable until other weights are."""
    there: list[bool] = []

    async def lose(ctx: RunContext, scripted: ScriptedWorkloads, publishes: Publishes) -> None:
        await publishes.wait_for(2)
        await anyio.sleep(5.0)
        assert ctx.publication.served == 2
        await lose_weights(ctx, scripted)
        await anyio.sleep(1.0)
        assert ctx.publication.serving == ctx.trained == 2
        there.append(any(owner == ctx.publication.owner(ctx.trained) for owner, _ in scripted.payloads.held))

    result, publishes, scripted = await live(lose, max_age=0, group_s=20.0)
    assert there == [True]
    assert result.steps == 8
    assert publishes.begun == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8]
    assert not scripted.payloads.held

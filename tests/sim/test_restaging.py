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
from conductor.observe.observer import Unwatched
from conductor.result import RunResult
from conductor.runtime import conduct, make_context
from protocols.aio import Doorbell, clock, open_tasks
from protocols.errors import WorkerLost
from protocols.inference import PublishReceipt, WeightsManifest
from protocols.ledger import Incident
from protocols.messages import WorkerId
from tests.support.runs import open_backend_over, run_config, workloads_of
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads

Loss = Callable[[RunContext, ScriptedWorkloads, "Publishes"], Coroutine[Any, Any, None]]


class Publishes:
    """Publishes as a pool does: whoever finds no weights looks again until there are some.

    Args:
        scripted: Whose inference publishes in the end.

    Attributes:
        begun: Versions, in order.
    """

    def __init__(self, scripted: ScriptedWorkloads) -> None:
        self._payloads = scripted.payloads
        self._publish = scripted.inference.publish
        self.begun: list[int] = []
        self._bell = Doorbell()
        scripted.inference.publish = self.publish

    async def publish(self, manifest: WeightsManifest) -> PublishReceipt:
        self.begun.append(manifest.version)
        self._bell.ring()
        while True:
            await anyio.sleep(0.5)
            with suppress(WorkerLost):
                await self._payloads.get(manifest.payload)
                return await self._publish(manifest)

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


async def live(lose: Loss, *, max_age: int, group_s: float = 1.0) -> tuple[RunResult, Publishes, ScriptedWorkloads]:
    scripted = scripted_workloads(200, duration_s=lambda _: group_s)
    publishes = Publishes(scripted)
    cfg, waits = run_config(steps=8, max_age=max_age), Waits(clock())
    async with (
        open_backend_over(scripted) as backend,
        open_ports(cfg, backend=backend, workloads=workloads_of(scripted, MemoryLedger()), waits=waits) as ports,
    ):
        ctx = make_context(cfg, ports, waits, log=structlog.get_logger(), observer=Unwatched(), failures=Failures())
        async with open_tasks() as tasks:
            tasks.start_soon(restaging.run, ctx)
            tasks.start_soon(lose, ctx, scripted, publishes)
            result = await conduct(ctx)
            tasks.cancel_scope.cancel()
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
        await lose_weights(ctx, scripted)

    result, publishes, scripted = await live(lose, max_age=3)
    assert result.steps == 8
    assert publishes.begun == [0, 1, 2, 3, 6, 7, 8]
    assert not scripted.payloads.held


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

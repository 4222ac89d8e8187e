"""Whole simulated runs whose engines come and go while they train, undisturbed and under faults."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
import pytest
import structlog

from backends.sim import Config
from backends.sim.launcher import SimLauncher
from backends.sim.virtual_time import run_virtual
from backends.sim.world import open_world
from conductor.bootstrap import open_ports
from conductor.context import RunContext
from conductor.core.waits import Waits
from conductor.failures import Failures
from conductor.inspection import inspect
from conductor.life import conduct, make_context
from conductor.observe.observer import Unwatched
from conductor.ports import Workloads
from conductor.result import RunResult
from conductor.simulation.life import in_simulation
from conductor.status import take_status
from conductor.validation import site_of
from protocols.aio import clock, open_tasks
from protocols.backend import WorkloadSpec
from protocols.errors import Transient, UserError
from protocols.faults import parse_plan
from protocols.incidents import Scaled
from protocols.ledger import LedgerEvent, Record
from tests.support.runs import run_config

Acts = Callable[[RunContext], Coroutine[Any, Any, None]]


@dataclass(kw_only=True)
class Lived:
    """What became of a run."""

    result: RunResult
    events: tuple[LedgerEvent, ...]
    unstopped: list[str]
    launched: list[str] = field(default_factory=list)

    @property
    def scaled(self) -> list[tuple[int, int, str]]:
        return [(one.before, one.after, one.verdict) for one in self.events if isinstance(one, Scaled)]


async def _live(acts: Acts, faults: str = "", *, sample: str = "constant:2.0", **fields: Any) -> Lived:
    """Run a job in a simulated world, and let ``acts`` disturb it."""
    options: dict[str, Any] = {"sample": sample, "train": "constant:1.0", "publish": "constant:0.1"}
    base: Mapping[str, Any] = {"steps": 20, "batch_groups": 4, "engines": 2, "max_age": 1}
    cfg = in_simulation(run_config(**{**base, **fields}), options)
    world_cfg = Config(**options, faults=parse_plan(faults))
    async with open_world(world_cfg, site_of(cfg)) as world:
        workloads = Workloads(prompts=world.prompts, ledger=world.ledger, trackers=())
        waits = Waits(clock())
        async with open_ports(
            cfg, backend=world.backend, workloads=workloads, waits=waits, log=structlog.get_logger()
        ) as ports:
            ctx = make_context(cfg, ports, waits, log=structlog.get_logger(), observer=Unwatched(), failures=Failures())
            async with open_tasks() as tasks:
                tasks.start_soon(acts, ctx)
                result = await conduct(ctx)
                tasks.cancel_scope.cancel()
        left = await world.backend.launcher.poll()
        inventory = await world.backend.placement.inventory()
        assert left == {}, "who joined is ended with the others"
        assert inventory.nodes[0].free == inventory.nodes[0].total, "and holds nothing"
        return Lived(result=result, events=await world.record(), unstopped=world.observed.unstopped)


def live(acts: Acts, faults: str = "", **fields: Any) -> Lived:
    """Do as ``_live``, on a loop of its own: the engines of a simulated world need one that anyio started."""
    return run_virtual(lambda: _live(acts, faults, **fields))


async def scale(ctx: RunContext, size: int) -> Scaled:
    assert ctx.ports.scaler is not None
    return await ctx.ports.scaler.scale("rollout", size)


def balanced(lived: Lived) -> bool:
    return inspect(Record(events=lived.events, lost=0)).balanced


def test_a_run_grows_and_shrinks_while_it_trains() -> None:
    """Issue E: ``conductor scale``. New engines load the current version alone and serve; drained ones lose nothing."""
    names: list[set[str]] = []

    async def acts(ctx: RunContext) -> None:
        for size in (4, 1):
            await anyio.sleep(7.3)
            await scale(ctx, size)
            await anyio.sleep(0.5)
            versions = await ctx.ports.inference.versions()
            names.append(set(versions))
            assert set(versions.values()) == {ctx.publication.served}
            assert (
                take_status(ctx).scaled == f"rollout had {(2, 4)[len(names) - 1]} workers at {_at(ctx)} and has {size}"
            )

    def _at(ctx: RunContext) -> str:
        return f"v{[one for one in ctx.incidents if isinstance(one, Scaled)][-1].version}"

    lived = live(acts)
    assert lived.scaled == [(2, 4, "scaled"), (4, 1, "scaled")]
    assert names == [{f"rollout/{number}" for number in range(4)}, {"rollout/0"}]
    assert lived.result.steps == 20
    assert balanced(lived)
    assert lived.unstopped == [], "nothing ran on an engine that was ended"
    assert lived.result.failures == {}, "and no group was tried again for it"


def test_groups_that_do_not_finish_in_time_are_readmitted() -> None:
    async def acts(ctx: RunContext) -> None:
        await anyio.sleep(30.0)
        began = anyio.current_time()
        await scale(ctx, 1)
        assert anyio.current_time() - began == pytest.approx(10.0), "half of deadlines.publish"

    deadlines = run_config().deadlines
    deadlines = msgspec.structs.replace(deadlines, publish=20.0)
    lived = live(
        acts, "slow@Engine.generate:rollout/1#8+1000000", sample="constant:1.0", deadlines=deadlines, attempts=9
    )
    assert lived.scaled == [(2, 1, "scaled")]
    assert lived.result.steps == 20
    assert balanced(lived)
    assert sum(lived.result.failures.values()) >= 1


@pytest.mark.parametrize(
    "faults",
    [
        "crash@Engine.status:rollout/2#1+5",
        "crash@Engine.load_weights:rollout/2#1+5",
        "hang@Engine.load_weights:rollout/3#1",
        "preemption@Engine:rollout/0@7.3+4",
        "preemption@Engine:rollout/3@15+4;crash@Engine.generate:rollout/2#1+3",
        "crash@Engine.generate:rollout/1#6+30",
        "lost_reply@Engine.generate:rollout/2#2;partial_publish@Engine.load_weights:rollout/2#2",
    ],
)
def test_the_books_balance_when_workers_fail_while_a_run_is_scaled(faults: str) -> None:
    """Whatever fails meanwhile, each request ends with a verdict, and the run with balanced books."""

    async def acts(ctx: RunContext) -> None:
        for size in (4, 3, 1, 2):
            await anyio.sleep(7.3)
            await scale(ctx, size)

    lived = live(acts, faults, steps=60, attempts=9)
    assert [verdict for _, _, verdict in lived.scaled] == ["scaled"] * 4
    assert [after for _, after, _ in lived.scaled] == [4, 3, 1, 2]
    assert lived.result.steps == 60
    assert balanced(lived)


def test_one_change_at_a_time_and_none_that_changes_nothing() -> None:
    refused: list[str] = []

    async def ask(ctx: RunContext, size: int) -> None:
        try:
            await scale(ctx, size)
        except UserError as exc:
            refused.append(str(exc))

    async def acts(ctx: RunContext) -> None:
        await anyio.sleep(5.0)
        await ask(ctx, 2)
        async with anyio.create_task_group() as both:
            both.start_soon(ask, ctx, 1)
            await anyio.sleep(0.01)
            both.start_soon(ask, ctx, 3)

    lived = live(acts)
    assert refused == [
        "rollout has 2 already",
        "rollout is being brought to 1 already; ask again when that is done",
    ]
    assert lived.scaled == [(2, 1, "scaled")]


class NoRoom(SimLauncher):
    """Has no room for one worker."""

    refused = "rollout/3"

    async def launch(self, spec: WorkloadSpec) -> None:
        if spec.worker_id == self.refused:
            await anyio.sleep(1.0)
            raise Transient("no process can be started")
        await super().launch(spec)


def test_a_change_that_fails_leaves_the_run_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """All or none: one of two could not be launched, so the other one is ended, and nothing stays reserved."""
    monkeypatch.setattr("backends.sim.world.SimLauncher", NoRoom)
    seen: list[object] = []

    async def acts(ctx: RunContext) -> None:
        await anyio.sleep(7.3)
        outcome = await scale(ctx, 4)
        seen.append((outcome.verdict, outcome.after, outcome.detail))
        seen.append(sorted(name for name in await ctx.ports.backend.launcher.poll() if name.startswith("rollout")))
        NoRoom.refused = ""
        seen.append((await scale(ctx, 4)).verdict)

    lived = live(acts)
    assert seen == [
        ("undone", 2, "no process can be started"),
        ["rollout/0", "rollout/1"],
        "scaled",
    ]
    assert lived.scaled == [(2, 2, "undone"), (2, 4, "scaled")]
    assert lived.result.steps == 20
    assert balanced(lived)

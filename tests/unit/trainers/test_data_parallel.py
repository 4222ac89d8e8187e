"""Ranks behind one trainer: they step together or not at all, and a lost one costs the step under way at most."""

from typing import Literal

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends.trainers.data_parallel import DataParallel
from protocols.errors import (
    BudgetExhausted,
    PayloadLost,
    PeersLost,
    PortFailed,
    SnapshotLost,
    StateLost,
    Transient,
    WorkerLost,
)
from protocols.inference import WeightsManifest
from protocols.messages import DispatchId, PayloadRef, WeightVersion, WorkerId
from protocols.training import (
    AccumulateReport,
    BatchLease,
    CheckpointRequest,
    CheckReport,
    CheckRequest,
    JoinRequest,
    RankPort,
    StageRequest,
    Standing,
    StepReport,
)
from tests.support.batches import make_batch

NAMES = [WorkerId(f"policy/{index}") for index in range(3)]


class Meeting:
    """What ranks see of one another: who is in which generation, and who waits in a sum."""

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.waiting: set[str] = set()
        self.changed = anyio.Event()

    def change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def leave(self, name: str) -> None:
        self.members.discard(name)
        self.change()

    async def add_up(self, name: str, world: int) -> None:
        """Wait for all; whoever went leaves the others with a failure, as gloo does."""
        self.waiting.add(name)
        self.change()
        try:
            while len(self.waiting) < world:
                if len(self.members) < world:
                    raise PeersLost("connection closed by peer")
                await self.changed.wait()
            await checkpoint()
        finally:
            self.waiting.discard(name)


class Rank:
    """A process that steps when all others do."""

    def __init__(self, name: WorkerId, meeting: Meeting, *, part: bool) -> None:
        self.name, self.meeting = name, meeting
        self.part = part
        self.contributed: list[str] = []
        self.fails: Transient | None = None
        self.launches = 1
        self.hangs = False
        self.dies_in = ""
        self.reset()

    def reset(self) -> None:
        self.alive = True
        self.version = WeightVersion(0)
        self.report: StepReport | None = None
        self.whole = True
        self.joined: JoinRequest | None = None

    def die(self) -> None:
        self.alive = False
        self.meeting.leave(self.name)

    async def _answer(self, method: str) -> None:
        await checkpoint()
        if self.dies_in == method:
            self.dies_in = ""
            self.die()
        if not self.alive:
            raise WorkerLost(worker=self.name, cause="killed by SIGKILL")

    async def train_step(self, batch: BatchLease) -> StepReport:
        try:
            await self._answer("train_step")
            if self.hangs:
                await anyio.sleep_forever()
            self._fail()
            await self.meeting.add_up(self.name, len(NAMES))
        except BaseException:
            self.meeting.leave(self.name)
            raise
        self.version = WeightVersion(batch.version + 1)
        self.report = StepReport(
            dispatch_id=batch.dispatch_id, version=self.version, mutated="yes", consumed=(), metrics={}
        )
        await self._answer("after_step")
        return self.report

    def _fail(self) -> None:
        if self.fails is not None:
            raise self.fails

    async def accumulate(self, batch: BatchLease) -> AccumulateReport:
        await self._answer("accumulate")
        return AccumulateReport(dispatch_id=batch.dispatch_id, metrics={})

    async def apply(self, dispatch_id: DispatchId) -> StepReport:
        await self._answer("apply")
        return StepReport(dispatch_id=dispatch_id, version=WeightVersion(1), mutated="yes", consumed=(), metrics={})

    async def discard(self) -> None:
        await self._answer("discard")

    async def outcome(self, dispatch_id: DispatchId) -> StepReport | None:
        await self._answer("outcome")
        return self.report if self.report and self.report.dispatch_id == dispatch_id else None

    async def stage_weights(self, request: StageRequest) -> WeightsManifest:
        await self._answer("stage_weights")
        ref = PayloadRef(owner=request.owner, key=f"v{self.version}")
        return WeightsManifest(version=self.version, payload=ref, tensors=1, size_bytes=4)

    async def snapshot(self) -> WeightVersion:
        await self._answer("snapshot")
        return self.version

    async def save(self, request: CheckpointRequest) -> WeightVersion:
        await self._answer("save")
        return self.version

    async def load(self, request: CheckpointRequest) -> WeightVersion:
        await self._answer("load")
        self.version = WeightVersion(int(request.path))
        return self.version

    async def contribute(self, to: Literal["weights", "state"]) -> WeightVersion:
        await self._answer("contribute")
        self.contributed.append(to)
        return self.version

    async def standing(self) -> Standing:
        await self._answer("standing")
        return Standing(version=self.version, whole=self.whole, part=self.part)

    async def offer(self, host: str) -> str:
        await self._answer("offer")
        return f"{host}:1"

    async def check(self, request: CheckRequest) -> CheckReport:
        await self._answer("check")
        return CheckReport(compute_s=1.0, exchange_s=float(request.world > 1))

    async def join(self, request: JoinRequest) -> None:
        self.meeting.members.discard(self.name)
        await self._answer("join")
        self.joined = request
        self.meeting.members.add(self.name)
        await checkpoint()


_: type[RankPort] = Rank


class Fleet:
    """Three ranks, and what brings one back: a process that knows nothing, of version 0.

    Args:
        budget: How many may be brought back.
        parts: Whether each holds a part only.
    """

    def __init__(self, budget: int = 5, *, parts: bool = False) -> None:
        meeting = Meeting()
        self.ranks = {name: Rank(name, meeting, part=parts) for name in NAMES}
        self.budget = budget
        self.trainer = DataParallel(self.ranks, revive=self._revive, host=lambda: "")

    async def _revive(self, name: WorkerId, error: WorkerLost) -> None:
        await checkpoint()
        if not self.budget:
            raise BudgetExhausted(what=f"restarts of {name}", spent=2, allowed=2, field="restarts", last=str(error))
        self.budget -= 1
        rank = self.ranks[name]
        rank.launches += 1
        rank.reset()

    def copy_from_source(self) -> None:
        """Do what a meeting of real ranks does: all take over the source's state."""
        joined = next(iter(self.ranks.values())).joined
        assert joined is not None
        source = self.ranks[NAMES[joined.source]]
        for rank in self.ranks.values():
            rank.version, rank.report = source.version, source.report

    @property
    def launches(self) -> list[int]:
        return [rank.launches for rank in self.ranks.values()]


def _batch(version: int) -> BatchLease:
    return make_batch(dispatch=version, version=version).lease


async def _step(fleet: Fleet, version: int) -> StepReport:
    return await fleet.trainer.train_step(_batch(version))


async def test_ranks_meet_once_and_step_together() -> None:
    fleet = Fleet()
    for version in range(3):
        assert (await _step(fleet, version)).version == version + 1
    joined = [rank.joined for rank in fleet.ranks.values()]
    assert [(one.rank, one.world, one.generation) for one in joined if one] == [(0, 3, 1), (1, 3, 1), (2, 3, 1)]


@pytest.mark.parametrize("victim", NAMES)
@pytest.mark.parametrize("when", ["train_step", "after_step"])
async def test_a_lost_rank_costs_the_step_under_way_at_most(victim: WorkerId, when: str) -> None:
    """W08, W14, law 1: the others fail fast and hear who is missing; only the lost one is launched anew."""
    fleet = Fleet()
    await _step(fleet, 0)
    fleet.ranks[victim].dies_in = when
    with anyio.fail_after(5), pytest.raises(Transient, match=f"{victim} is lost") as failed:
        await _step(fleet, 1)
    assert not isinstance(failed.value, WorkerLost), "which would say that the trainer is gone"
    outcome = await fleet.trainer.outcome(_batch(1).dispatch_id)
    assert (outcome is not None) == (when == "after_step")
    await fleet.trainer.stage_weights(StageRequest(owner="w", exclusive=False))
    fleet.copy_from_source()
    assert fleet.launches == [1 + (name == victim) for name in NAMES]
    joined = fleet.ranks[NAMES[0]].joined
    assert joined is not None
    assert NAMES[joined.source] != victim
    reached = 2 if outcome else 1
    assert (await _step(fleet, reached)).version == reached + 1


async def test_a_hanging_rank_is_cancelled_with_the_step_and_the_next_one_meets_anew() -> None:
    fleet = Fleet()
    await _step(fleet, 0)
    fleet.ranks[NAMES[1]].hangs = True
    with anyio.move_on_after(30) as scope:
        await _step(fleet, 1)
    assert scope.cancelled_caught
    fleet.ranks[NAMES[1]].hangs = False
    assert (await _step(fleet, 1)).version == 2
    assert fleet.launches == [1, 1, 1]


async def test_a_budget_ends_the_restarts() -> None:
    """W09, W10: a rank that dies again and again is counted every time."""
    fleet = Fleet(budget=2)
    for _ in range(2):
        fleet.ranks[NAMES[2]].dies_in = "train_step"
        with pytest.raises(Transient, match="is lost"):
            await _step(fleet, 0)
    fleet.ranks[NAMES[2]].dies_in = "train_step"
    with pytest.raises(Transient, match="is lost"):
        await _step(fleet, 0)
    with pytest.raises(BudgetExhausted):
        await _step(fleet, 0)


@pytest.mark.parametrize("harm", ["all lost", "half-way"])
async def test_where_nobody_holds_a_whole_version_only_a_checkpoint_leads_on(harm: str) -> None:
    fleet = Fleet()
    await _step(fleet, 0)
    fleet.ranks[NAMES[0]].dies_in = "train_step"
    with pytest.raises(Transient, match="is lost"):
        await _step(fleet, 1)
    for rank in list(fleet.ranks.values())[1:]:
        if harm == "all lost":
            rank.die()
        else:
            rank.whole = False
    with pytest.raises(StateLost, match="whole version"):
        await _step(fleet, 1)


async def test_a_rank_that_was_replaced_between_two_steps_is_given_the_state() -> None:
    """Nobody called it meanwhile, so nobody was told that it was lost: its parameters are those of a fresh process."""
    fleet = Fleet()
    await _step(fleet, 0)
    fleet.ranks[NAMES[0]].reset()
    fleet.trainer.replaced(NAMES[0])
    await fleet.trainer.meet()
    joined = fleet.ranks[NAMES[0]].joined
    assert joined is not None
    assert NAMES[joined.source] != NAMES[0]
    assert joined.generation == 2
    fleet.copy_from_source()
    assert (await _step(fleet, 1)).version == 2


@pytest.mark.parametrize("call", ["stage_weights", "save"])
async def test_what_one_rank_does_is_done_by_the_one_that_took_its_place(call: str) -> None:
    fleet = Fleet()
    await _step(fleet, 0)
    fleet.ranks[NAMES[0]].dies_in = call
    if call == "save":
        await fleet.trainer.save(CheckpointRequest(path="/there"))
    else:
        await fleet.trainer.stage_weights(StageRequest(owner="w", exclusive=False))
    assert fleet.launches == [2, 1, 1]
    joined = fleet.ranks[NAMES[0]].joined
    assert joined is not None
    assert NAMES[joined.source] != NAMES[0]


async def test_gradients_do_not_outlive_a_parting() -> None:
    fleet = Fleet()
    await fleet.trainer.accumulate(_batch(0))
    fleet.ranks[NAMES[1]].dies_in = "apply"
    with pytest.raises(Transient, match="policy/1 is lost"):
        await fleet.trainer.apply(_batch(0).dispatch_id)
    with pytest.raises(PortFailed, match="not accumulated"):
        await fleet.trainer.apply(_batch(0).dispatch_id)
    await fleet.trainer.discard()


async def test_an_outcome_that_nobody_can_know_is_the_loss_of_what_was_trained() -> None:
    fleet = Fleet()
    await _step(fleet, 0)
    for rank in fleet.ranks.values():
        rank.die()
    with pytest.raises(StateLost, match="killed by SIGKILL"):
        await fleet.trainer.outcome(_batch(0).dispatch_id)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_snapshot_goes_with_the_rank_that_took_it(when: str) -> None:
    """Law 5: what another rank holds by then is another version, and must not be taken for the checkpoint's."""
    fleet = Fleet()
    await _step(fleet, 0)
    await fleet.trainer.snapshot()
    if when == "before":
        fleet.trainer.replaced(NAMES[0])
    else:
        fleet.ranks[NAMES[0]].dies_in = "save"
    with pytest.raises(SnapshotLost, match="lost"):
        await fleet.trainer.save(CheckpointRequest(path="1"))
    await fleet.trainer.snapshot()  # what there is now can be copied
    await fleet.trainer.save(CheckpointRequest(path="2"))
    assert fleet.launches == [2 if when == "meanwhile" else 1, 1, 1]


async def test_a_snapshot_is_saved_while_the_ranks_step() -> None:
    fleet = Fleet()
    await _step(fleet, 0)
    assert await fleet.trainer.snapshot() == 1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_step, fleet, 1)
        await fleet.trainer.save(CheckpointRequest(path="1"))
    joined = fleet.ranks[NAMES[0]].joined
    assert joined is not None
    assert joined.generation == 1


async def test_what_ranks_hold_in_parts_is_gathered_from_all_of_them() -> None:
    fleet = Fleet(parts=True)
    await _step(fleet, 0)
    await fleet.trainer.stage_weights(StageRequest(owner="w", exclusive=False))
    await fleet.trainer.snapshot()
    await fleet.trainer.save(CheckpointRequest(path="1"))
    assert [rank.contributed for rank in fleet.ranks.values()] == [[], ["weights", "state"], ["weights", "state"]]
    await fleet.trainer.save(CheckpointRequest(path="2"))
    assert fleet.ranks[NAMES[2]].contributed == ["weights", "state", "state"]


@pytest.mark.parametrize("victim", NAMES)
@pytest.mark.parametrize("when", ["train_step", "after_step", "contribute"])
async def test_a_part_that_is_lost_is_lost_for_good(victim: WorkerId, when: str) -> None:
    """Issue E: nobody has a copy, so only a checkpoint leads on; a process that knows nothing must not be stepped."""
    fleet = Fleet(parts=True)
    await _step(fleet, 0)
    if when == "contribute":
        fleet.ranks[victim].dies_in = "stage_weights" if victim == NAMES[0] else when
        doomed = fleet.trainer.stage_weights(StageRequest(owner="w", exclusive=False))
    else:
        fleet.ranks[victim].dies_in = when
        doomed = fleet.trainer.train_step(_batch(1))
    with anyio.fail_after(5), pytest.raises(StateLost, match=f"^{victim} held what was trained: killed by SIGKILL"):
        await doomed
    for _ in range(2):
        with pytest.raises(StateLost, match=f"^{victim} held what was trained"):
            await _step(fleet, 1)


async def test_parts_that_all_are_there_go_on_after_a_step_that_failed() -> None:
    """A lost payload costs no checkpoint: whoever failed left the others, and nothing was changed."""
    fleet = Fleet(parts=True)
    await _step(fleet, 0)
    fleet.ranks[NAMES[1]].fails = PayloadLost(owner="o", cause="gone")
    with pytest.raises(PayloadLost):
        await _step(fleet, 1)
    fleet.ranks[NAMES[1]].fails = None
    assert (await _step(fleet, 1)).version == 2
    joined = [rank.joined for rank in fleet.ranks.values()]
    assert [(one.rank, one.generation) for one in joined if one] == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize(("harm", "told"), [("another version", "v1, v2"), ("half-way", "v1, v1 and a half")])
async def test_parts_of_different_versions_make_none(harm: str, told: str) -> None:
    fleet = Fleet(parts=True)
    await _step(fleet, 0)
    fleet.ranks[NAMES[1]].fails = PayloadLost(owner="o", cause="gone")
    with pytest.raises(PayloadLost):
        await _step(fleet, 1)
    if harm == "half-way":
        fleet.ranks[NAMES[2]].whole = False
    else:
        fleet.ranks[NAMES[2]].version = WeightVersion(2)
    with pytest.raises(StateLost, match=told):
        await _step(fleet, 1)

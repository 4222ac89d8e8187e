"""A run whose whole trainer dies goes back to its last checkpoint by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from backends.sim import Config
from backends.sim.virtual_time import VirtualTimeLoop
from backends.sim.world import open_world
from conductor.conductor import Conductor
from conductor.config import CheckpointConfig, FleetConfig, RoleConfig, RunConfig
from conductor.core.leases import LeaseTable
from conductor.past import rebuild
from conductor.ports import Workloads
from conductor.result import RunResult
from conductor.validation import site_of
from protocols.errors import BudgetExhausted, PortFailed
from protocols.faults import parse_plan
from protocols.fleet import Restarts
from protocols.incidents import Incident
from protocols.inference import Sampling
from protocols.ledger import LedgerEvent, Resumed
from protocols.sections import Section
from tests.support.runs import run_config


@dataclass
class Told:
    """What is known of a run at its end."""

    result: RunResult | None = None
    error: Exception | None = None
    events: tuple[LedgerEvent, ...] = ()
    unstopped: Sequence[str] = ()
    owners: frozenset[str] = frozenset()

    @property
    def table(self) -> LeaseTable:
        return rebuild(self.events)

    @property
    def incidents(self) -> list[Incident]:
        return [event for event in self.events if isinstance(event, Incident)]


def job(run_dir: Path | None, **fields: Any) -> RunConfig:
    base: dict[str, Any] = {
        "steps": 8,
        "max_age": 1,
        "backend": Section(kind="sim"),
        "reward": Section(kind="sim"),
        "sampling": Sampling(max_tokens=1 << 20),
        "checkpoint": CheckpointConfig(every=3),
    }
    return run_config(run_dir=None if run_dir is None else str(run_dir), **base | fields)


def run(cfg: RunConfig, faults: str) -> Told:
    told = Told()

    async def conduct() -> None:
        options = Config(sample="constant:3.0", train="1.0", publish="0.1", faults=parse_plan(faults))
        async with open_world(options, site_of(cfg)) as world:
            workloads = Workloads(prompts=world.prompts, ledger=world.ledger, trackers=())
            try:
                told.result = await Conductor.run(cfg, backend=world.backend, workloads=workloads)
            except PortFailed as exc:
                told.error = exc
            told.events, told.unstopped, told.owners = await world.record(), world.observed.unstopped, world.owners()

    anyio.run(conduct, backend_options={"loop_factory": lambda: VirtualTimeLoop(0)})
    return told


@pytest.mark.parametrize("method", ["train_step", "outcome", "stage_weights"])
def test_the_run_goes_on_from_its_last_checkpoint_with_balanced_books(tmp_path: Path, method: str) -> None:
    """Issue E: the loss of the trainer is survived by a restart from the last checkpoint with the books balanced."""
    lost_reply = "lost_reply@Trainer.train_step#5+1;" if method == "outcome" else ""
    call = {"train_step": 5, "outcome": 1, "stage_weights": 6}[method]
    told = run(job(tmp_path), f"{lost_reply}crash@Trainer.{method}:policy/0#{call}+20")
    assert told.error is None
    assert told.result is not None
    assert told.result.steps == 8
    assert [record.step for record in told.result.metrics] == list(range(1, 9)), "no step is told of twice"
    assert told.table.accounts.balanced
    assert not told.table.accounts.open
    assert [event.version for event in told.events if isinstance(event, Resumed)] == [3]
    (incident,) = told.incidents
    assert (incident.workers, incident.level, incident.verdict) == (("policy/0",), "job", "restored")
    assert incident.seconds >= 20, "until it trains again"
    assert not told.unstopped
    assert not told.owners


def test_it_trains_the_groups_that_a_run_trains_which_loses_nothing(tmp_path: Path) -> None:
    """A restart neither loses nor repeats a prompt, at ``max_age`` 0 in the same order."""
    plain = run(job(tmp_path / "plain", max_age=0), "")
    lost = run(job(tmp_path / "lost", max_age=0), "crash@Trainer.train_step:policy/0#5+20")
    assert lost.result is not None
    assert plain.result is not None
    assert lost.result.accounts == plain.result.accounts
    assert lost.result.samples == plain.result.samples


def test_without_a_checkpoint_it_ends_and_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, None):
        told = run(job(folder, checkpoint=CheckpointConfig(every=0)), "crash@Trainer.train_step:policy/0#5+20")
        assert type(told.error) is PortFailed
        assert "policy/0 held what was trained" in str(told.error)
        assert "there is no checkpoint to go back to" in str(told.error)
        assert [(one.level, one.verdict) for one in told.incidents] == [("job", "given_up")]
        assert told.table.accounts.balanced


def test_a_trainer_that_dies_again_and_again_ends_the_run_within_its_budget(tmp_path: Path) -> None:
    faults = ";".join(f"crash@Trainer.train_step:policy/0#{call}+1" for call in (5, 7, 9))
    policy = RoleConfig(restarts=Restarts(worker=2))
    told = run(job(tmp_path, fleet=FleetConfig(roles={"policy": policy})), faults)
    assert isinstance(told.error, BudgetExhausted)
    assert told.error.field == "fleet.roles.policy.restarts.worker"
    assert [one.verdict for one in told.incidents] == ["restored", "restored", "given_up"]
    assert told.table.accounts.balanced


def test_a_trainer_that_dies_on_the_way_back_is_gone_back_for_once_more(tmp_path: Path) -> None:
    """The sixth weights are staged on the way back: nothing of that life is in the record yet."""
    told = run(job(tmp_path), "crash@Trainer.train_step:policy/0#5+1;crash@Trainer.stage_weights:policy/0#6+9")
    assert told.error is None
    assert [event.version for event in told.events if isinstance(event, Resumed)] == [3]
    (incident,) = told.incidents
    assert (incident.verdict, incident.attempts, incident.version) == ("restored", 2, 4)
    assert incident.seconds >= 10


def test_it_can_be_resumed_afterwards_all_the_same(tmp_path: Path) -> None:
    """The record of a run that went back is one that ``conductor resume`` reads."""
    told = run(job(tmp_path), "crash@Trainer.train_step:policy/0#5+20")
    assert msgspec.json.encode(told.events)
    assert told.table.accounts.committed == 8 * 2

"""Law 7 with what users have: SQLite, checkpoints, a socket, evaluations, real threads. Disturbed, then resumed."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import anyio
import pytest

from backends.ledgers import sqlite
from backends.sim.prompts import ScriptedPrompts
from conductor.conductor import Conductor
from conductor.config import CheckpointConfig, Deadlines, EvaluationConfig, RunConfig
from conductor.core.lease import State
from conductor.past import rebuild
from conductor.result import RunResult
from protocols.errors import ForeignCancellation
from protocols.ledger import LedgerEvent
from protocols.sections import Site
from tests.sim.test_resume import troubled
from tests.support.await_probe import AwaitProbe, Injection, Planted, _act, anywhere, may_fail
from tests.support.runs import open_backend_over, run_config, workloads_of
from tests.support.scripted.chained import ChainedTrainer
from tests.support.scripted.workloads import ScriptedWorkloads, scripted_workloads
from tests.support.trials import Outcome, run_program

pytestmark = pytest.mark.real_time

PLACES = 8
Durability = Literal["leases", "groups"]


class Life:
    """One process: workloads of its own over a folder that outlives it."""

    def __init__(self, run_dir: Path, durability: Durability = "leases") -> None:
        self.run_dir = run_dir
        self.durability: Durability = durability
        scripted = scripted_workloads(ScriptedPrompts(7, epochs=2), duration_s=lambda _: 0.0, rewards=troubled)
        self.trainer = ChainedTrainer(scripted.payloads, step_s=0.0, save_s=0.01)  # on a real clock
        self.scripted: ScriptedWorkloads = replace(scripted, trainer=self.trainer)

    @property
    def cfg(self) -> RunConfig:
        return run_config(
            steps=3,
            group_size=3,
            run_dir=str(self.run_dir),
            checkpoint=CheckpointConfig(every=1, keep=1, compact_events=25, durability=self.durability),
            deadlines=Deadlines(abort=2.0, record=5.0),
            evaluation=EvaluationConfig(every=2, samples=2),
        )

    async def run(self) -> RunResult:
        async with open_backend_over(self.scripted) as backend:
            workloads = replace(workloads_of(self.scripted), ledger=None, evaluation_prompts=ScriptedPrompts(2))
            return await Conductor.run(self.cfg, backend=backend, workloads=workloads, resume=True, control=True)

    def events(self) -> tuple[LedgerEvent, ...]:
        if not (self.run_dir / "ledger.sqlite").exists():
            return ()
        return sqlite.read(sqlite.Config(), Site(job_dir="/", run_dir=str(self.run_dir))).events


def live(life: Life, injection: Injection, at: int | None) -> tuple[list[str], Outcome[RunResult]]:
    """Live, disturbed at one await."""
    probe = AwaitProbe(at, counts=may_fail if injection == "fail" else anywhere)

    def make_loop() -> asyncio.SelectorEventLoop:
        loop = asyncio.SelectorEventLoop()
        loop.set_task_factory(probe)
        return loop

    async def probed(scope: anyio.CancelScope) -> RunResult:
        with probe.acting(_act(injection, scope)):
            return await life.run()

    return probe.sites, run_program(probed, make_loop)  # type: ignore[arg-type]


def places(tmp_path: Path, injection: Injection, durability: Durability) -> Iterator[int]:
    sites, outcome = live(Life(tmp_path / "undisturbed", durability), injection, None)
    assert outcome.error is None
    assert len(sites) > 4 * PLACES, "the program has lost its awaits"
    return iter(range(1, len(sites), len(sites) // PLACES))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("injection", "durability"),
    [("fail", "groups"), ("cancel_scope", "groups"), ("cancel_main", "groups"), ("cancel_task", "leases")],
)
def test_disturbed_at_an_await_it_ends_in_order_and_goes_on_to_the_same_end(
    tmp_path: Path, injection: Injection, durability: Durability
) -> None:
    """Issue C: live requests empty, books balanced, the resumed run completes with the weights it would have had."""
    reference = Life(tmp_path / "reference")
    _, undisturbed = live(reference, injection, None)
    assert undisturbed.value is not None
    for at in places(tmp_path, injection, durability):
        life = Life(tmp_path / str(at), durability)
        sites, outcome = live(life, injection, at)
        place = f"{at}: {sites[at - 1] if len(sites) >= at else 'not reached'}: {outcome}"
        assert_ended(injection, outcome, place)
        assert not outcome.left, place
        assert not (life.run_dir / "control.sock").exists(), place
        assert life.scripted.executor.live == frozenset(), place
        table = rebuild(life.events())
        assert table.accounts.balanced, place
        if injection != "fail" or "LedgerThread" not in place:  # after a failed append nothing is written any more
            assert all(lease.state is not State.GENERATING for lease in table), place
        again = Life(life.run_dir, durability)
        _, resumed = live(again, injection, None)
        assert resumed.error is None, f"{place}: {resumed}"
        assert resumed.value is not None
        assert again.trainer.weights == reference.trainer.weights, place
        assert resumed.value.accounts == undisturbed.value.accounts, place


def assert_ended(injection: Injection, outcome: Outcome[RunResult], place: str) -> None:
    """What was injected comes out, unless threads were quicker and the await was not reached."""
    if outcome.value is not None:
        return
    if injection == "fail":
        assert isinstance(outcome.error, Planted), place
    elif injection == "cancel_scope":
        assert outcome.cancelled, place
        assert outcome.error is None, place
    else:
        assert isinstance(outcome.error, asyncio.CancelledError | ForeignCancellation), place

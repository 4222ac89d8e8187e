"""One simulated world: scripted workloads under the real controller, the faults of a plan, what is seen of it."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from backends.episodes.single_turn import SingleTurn
from backends.ledgers.memory import MemoryLedger
from backends.sim.distributions import Draw, parse, sample_lengths, step_seconds
from backends.sim.engine import EngineModel, SimEngine
from backends.sim.faults import Faults
from backends.sim.launcher import PORT_NAMES, SimLauncher
from backends.sim.payloads import ScriptedPayloads
from backends.sim.placement import SimPlacement
from backends.sim.prompts import ScriptedPrompts
from backends.sim.settings import Config
from backends.sim.trainer import ScriptedTrainer
from backends.sim.workloads import SimGrader, SimTokenizer
from protocols.aio import open_tasks
from protocols.backend import Backend, PayloadPort, WorkloadSpec
from protocols.errors import ConfigError, InvariantError, Problem, UserError
from protocols.faults import AT_A_MOMENT, Fault
from protocols.inference import InferenceControllerPort
from protocols.ledger import LedgerEvent, LedgerPort
from protocols.messages import DispatchId, WorkerId, stream_name
from protocols.prompts import PromptSourcePort
from protocols.sections import Site
from protocols.simulation import EngineUsage, Observed, SimulatedWorld
from protocols.training import BatchLease, StepReport

_EVALUATED = 4
_EPOCH = 1 << 40  # prompts: more than any run draws


@dataclass(frozen=True, kw_only=True)
class _Times:
    """How long things take."""

    sample: Draw
    train: Draw
    publish: Draw
    reward: Draw

    @classmethod
    def of(cls, cfg: Config) -> "_Times":
        measured: dict[str, Callable[[Path], Sequence[float]]] = {
            "sample": lambda run: [length / cfg.tokens_per_s for length in sample_lengths(run)],
            "train": lambda run: step_seconds(run, "time/train_s"),
            "publish": lambda run: step_seconds(run, "time/publish_s"),
            "reward": _untold,
        }
        draws: dict[str, Draw] = {}
        problems: list[Problem] = []
        for name, read in measured.items():
            text = getattr(cfg, name)
            try:
                draws[name] = parse(text, read)
            except UserError as exc:
                field, mend = f"backend.{name}", "see docs/simulation.md"
                problems.append(Problem(field=field, value=repr(text), why=exc.message, mend=mend))
        if problems:
            raise ConfigError(problems)
        return cls(**draws)


def _untold(run: object) -> tuple[float, ...]:
    raise UserError(f"{run}: no metric of a run tells how long its rewards took; give a number of seconds")


class _Trainer(ScriptedTrainer):
    """Tells what it applied."""

    trained: list[tuple[str, ...]]

    async def apply(self, dispatch_id: DispatchId) -> StepReport:
        """Step."""
        report = await super().apply(dispatch_id)
        self.trained.append(tuple(f"{group.lease_id}/{group.attempt}" for group in self.steps[-1].groups))
        return report


class World:
    """See ``SimulatedWorld``.

    Args:
        cfg: How long things take, and what goes wrong.
        site: Its seed is that of every draw.
        trace: Whether to write down every call.
    """

    def __init__(self, cfg: Config, site: Site, *, trace: bool = False) -> None:
        self._cfg = cfg
        self._seed = site.seed
        self._times = _Times.of(cfg)
        self.observed = Observed(trace=[] if trace else None)
        self._faults = Faults(cfg.faults, self.observed)
        self._engines: list[SimEngine] = []
        self._store = ScriptedPayloads()
        self._payloads = self._faults.wrap(PayloadPort, self._store)
        self._ledger = MemoryLedger()
        self._launcher = SimLauncher(self._make, self._faults, self.observed.unstopped)
        self.backend = Backend(placement=SimPlacement(), launcher=self._launcher, payloads=self._payloads)
        self.prompts = self._faults.wrap(PromptSourcePort, ScriptedPrompts(_EPOCH, seed=site.seed))
        self.evaluation_prompts: PromptSourcePort = ScriptedPrompts(_EVALUATED, seed=site.seed)
        self.ledger = self._faults.wrap(LedgerPort, self._ledger)
        self._model = EngineModel(
            slots=cfg.slots,
            tokens_per_s=cfg.tokens_per_s,
            slowdown=cfg.slowdown,
            work_s=self._times.sample,
            load_s=lambda version: self._times.publish(f"{self._seed}/publish/{version}"),
            hears_cancel=False,
        )

    async def record(self) -> tuple[LedgerEvent, ...]:
        """Return what the ledger holds."""
        return await self._ledger.replay()

    def owners(self) -> frozenset[str]:
        """Return who holds payloads."""
        return frozenset(owner for owner, _ in self._store.held)

    def usage(self) -> EngineUsage:
        """Return what the engines have done."""
        used = [engine.measure() for engine in self._engines]
        engines = len({engine.name for engine in self._engines})
        return EngineUsage(
            engines=engines,
            slots=engines * self._cfg.slots,
            busy_s=sum(one.busy_s for one in used),
            work_s=sum(one.work_s for one in used),
            standing_s=sum(one.standing_s for one in used),
        )

    def work_s(self, position: int, sample: int) -> float:
        """Return how long a sample takes when it runs alone."""
        return self._times.sample(stream_name(self._seed, position, sample))

    def pace(self) -> float:
        """Return the share of that speed that is left in a full engine."""
        return self._model.pace(self._cfg.slots)

    def start(self, tasks: TaskGroup) -> None:
        """Begin to count the time until what is planned for a moment."""
        for index, fault in enumerate(self._cfg.faults.faults):
            if fault.kind in AT_A_MOMENT:
                happen = self._preempt if fault.kind == "preemption" else self._give_notice
                tasks.start_soon(happen, index, fault, name=f"{fault.kind} {index}")

    async def _preempt(self, index: int, fault: Fault) -> None:
        await anyio.sleep_until(fault.at_s or 0.0)
        for worker in self._meant(fault):
            for stage in self._launcher.crash(worker, fault.lasts_s) or ("idle",):
                self._faults.hit(index, fault, stage)

    async def _give_notice(self, index: int, fault: Fault) -> None:
        await anyio.sleep_until(fault.at_s or 0.0)
        for worker in self._meant(fault):
            self._faults.hit(index, fault, "idle")
            self._launcher.notify(worker)
            await anyio.sleep(fault.lasts_s)
            if self._launcher.take_away(worker):
                self.observed.unheeded.append(worker)

    def _meant(self, fault: Fault) -> list[WorkerId]:
        """Return the worker that a fault is about: that which it names, or the first; none where there is none."""
        section = next(section for section, name in PORT_NAMES.items() if name == fault.method)
        return [name for name in self._launcher.workers(section) if fault.worker in {None, name}][:1]

    def _make(self, spec: WorkloadSpec, inference: InferenceControllerPort | None) -> Any:
        match spec.section:
            case "engine":
                engine = SimEngine(spec.worker_id, self._model, self._payloads)
                self._engines.append(engine)
                return engine
            case "train":
                trainer = _Trainer(self._payloads, step_s=self._step_s)
                trainer.trained = self.observed.trained
                return trainer
            case "reward":
                return SimGrader(
                    self._payloads, lambda request: self._times.reward(f"{self._seed}/reward/{request.prompt.position}")
                )
            case _:
                if inference is None:
                    raise InvariantError("an executor was launched before the engines that it plays on")
                return SingleTurn(SimTokenizer(), inference, self._payloads)

    def _step_s(self, batch: BatchLease) -> float:
        return self._times.train(f"{self._seed}/train/{batch.version}")


_: type[SimulatedWorld] = World


@asynccontextmanager
async def open_world(cfg: Config, site: Site, *, trace: bool = False) -> AsyncGenerator[World]:
    """Open a world; what is planned for a moment happens while the block runs."""
    world = World(cfg, site, trace=trace)
    async with open_tasks() as tasks:
        world.start(tasks)
        yield world
        tasks.cancel_scope.cancel()

"""One simulated run: a world, the real controller in it, and what is known of both afterwards."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import msgspec

from conductor.conductor import Conductor
from conductor.config import FleetConfig, RunConfig
from conductor.ports import Workloads
from conductor.result import Accounts, RunResult
from conductor.validation import site_of
from protocols.adapters import load_object, resolve
from protocols.faults import FaultPlan
from protocols.ledger import LedgerEvent
from protocols.sections import Section
from protocols.simulation import EngineUsage, Observed, SimulatedWorld
from protocols.tracking import StepRecord

BACKEND = "sim"
_OPEN_WORLD = "backends.sim.world:open_world"
_FOR_EVER_S = 1e12


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A closed train step: when, and what the engines had done until then."""

    at_s: float
    step: int
    usage: EngineUsage


@dataclass(kw_only=True)
class Life:
    """What became of a simulated run.

    Attributes:
        cfg: The job.
        result: None where it failed.
        error: What ended it; None where nothing did.
        seconds: Virtual time at its end.
        events: Its record.
        observed: What the world saw.
        moments: Its steps.
        usage: What the engines had done at the end.
        owners: Who held payloads at the end.
        work_s: Prompt position and sample -> seconds that the sample takes alone.
        pace: The share of that speed in a full engine.
    """

    cfg: RunConfig
    result: RunResult | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    events: tuple[LedgerEvent, ...] = ()
    observed: Observed = field(default_factory=Observed)
    moments: list[Moment] = field(default_factory=list)
    usage: EngineUsage | None = None
    owners: frozenset[str] = frozenset()
    work_s: Callable[[int, int], float] = lambda _position, _sample: 0.0
    pace: float = 1.0


class _Opens(Protocol):
    def __call__(self, cfg: Any, site: Any, *, trace: bool) -> Any: ...


class _Watcher:
    """Writes down each step (``Observer``)."""

    def __init__(self, world: SimulatedWorld, moments: list[Moment]) -> None:
        self._world = world
        self._moments = moments

    def phase(self, name: str) -> None:
        """Do nothing."""

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Write down when the step was closed."""
        del accounts
        self._moments.append(Moment(at_s=anyio.current_time(), step=record.step, usage=self._world.usage()))


def in_simulation(cfg: RunConfig, options: dict[str, Any]) -> RunConfig:
    """Return a job as it is simulated.

    Its workloads are scripted, so a completion is as long as the world says; nothing is placed, written or evaluated,
    and engines that would only evaluate are not there.

    Args:
        cfg: The job.
        options: Of ``[backend] kind = "sim"``.
    """
    return msgspec.structs.replace(
        cfg,
        backend=Section(kind=BACKEND, options=options),
        reward=cfg.reward or Section(kind=BACKEND),
        model=None,
        evaluation=None,
        engines=cfg.engines - cfg.reserved_engines,
        sampling=msgspec.structs.replace(cfg.sampling, max_tokens=1 << 40),
        run_dir=None,
        ledger=None,
        trackers=(),
        fleet=FleetConfig(),
        lag_interval_s=0.0,
        freeze_gc=False,
    )


def live(
    cfg: RunConfig,
    *,
    seed: int | None = None,
    faults: FaultPlan | None = None,
    trace: bool = False,
    horizon_s: float = _FOR_EVER_S,
) -> Life:
    """Run a job that ``in_simulation`` made, on a loop of its own.

    Args:
        cfg: The job.
        seed: Of the order in which ready tasks run; None: first come, first served.
        faults: What goes wrong; None: what the job's backend says.
        trace: Whether ``observed.trace`` is wanted.
        horizon_s: Virtual seconds after which the run counts as endless.

    Returns:
        How it ended. A run that can make no progress at all ends with the loop's own error.
    """
    adapter: Any = resolve("backend", cfg.backend.kind)
    options = msgspec.convert(cfg.backend.options, adapter.Config)
    if faults is not None:
        options = msgspec.structs.replace(options, faults=faults)
    life = Life(cfg=cfg)
    factory = adapter.loop_factory(seed, horizon_s=horizon_s)
    try:
        anyio.run(conduct, life, options, trace, backend_options={"loop_factory": factory})
    except Exception as exc:  # noqa: BLE001 - a verdict of the loop is one way to end
        life.error = exc
    return life


async def conduct(life: Life, options: Any, trace: bool) -> None:
    """Run a job on the loop that runs this, whichever that is, and write down in ``life`` what becomes of it.

    Args:
        life: Its ``cfg`` is run.
        options: The ``Config`` of the world.
        trace: Whether ``observed.trace`` is wanted.
    """
    open_world: _Opens = load_object(_OPEN_WORLD, "")
    async with open_world(options, site_of(life.cfg), trace=trace) as opened:
        world: SimulatedWorld = opened
        life.observed, life.work_s, life.pace = world.observed, world.work_s, world.pace()
        workloads = Workloads(
            prompts=world.prompts, evaluation_prompts=world.evaluation_prompts, ledger=world.ledger, trackers=()
        )
        try:
            life.result = await Conductor.run(
                life.cfg, backend=world.backend, workloads=workloads, observer=_Watcher(world, life.moments)
            )
        except Exception as exc:  # noqa: BLE001 - what ended the run is what is asked for
            life.error = exc
        life.seconds, life.usage = anyio.current_time(), world.usage()
        life.owners, life.events = world.owners(), await world.record()

"""What a simulated run came to, for people: how fast, how old, who was idle, and what it would take to be faster."""

import math
from collections.abc import Iterable, Sequence

from conductor.config import RunConfig
from conductor.simulation.laws import ages
from conductor.simulation.life import Life
from protocols.ledger import Admitted, Committed
from protocols.messages import LeaseId, Message

_BUSY = 0.97  # of its time: who has that much to do holds everybody up


class Row(Message, frozen=True, kw_only=True):
    """One setting.

    Attributes:
        label: What was set.
        samples_per_s: Trained samples a second, between warm-up and the end of admission.
        speed_up: Over the synchronous loop with the same model of the world.
        of_bound: Share of the throughput that no controller can beat.
        engine_idle: Share of the engines' slots that made no token.
        trainer_idle: Share of the time that the trainer waited.
        age_mean, age_p99, age_max: Weight versions, of the oldest token of each trained sample.
        waste: Share of the engines' work that was not trained.
        length_ratio: Mean length of trained samples over that of sampled ones; below 0.95 the slow are missing.
        limit: What limits it, in a sentence.
        failure: What ended the run; None where it finished.
    """

    label: str
    samples_per_s: float = 0.0
    speed_up: float = 0.0
    of_bound: float = 0.0
    engine_idle: float = 0.0
    trainer_idle: float = 0.0
    age_mean: float = 0.0
    age_p99: float = 0.0
    age_max: float = 0.0
    waste: float = 0.0
    length_ratio: float = 0.0
    limit: str = ""
    failure: str | None = None


class Window(Message, frozen=True, kw_only=True):
    """The steps of a run that are measured: neither its warm-up nor its end, where admission has stopped.

    Attributes:
        steps: How many.
        seconds: That they took.
        samples: That they trained.
        busy_s: Seconds of slots that made tokens meanwhile.
        slots: Of all engines.
        train_s, publish_s: Means of a step.
        work_s: Seconds of each sample that they trained, in a full engine.
    """

    steps: int
    seconds: float
    samples: int
    busy_s: float
    slots: int
    train_s: float
    publish_s: float
    work_s: tuple[float, ...]

    @property
    def ideal_s(self) -> float:
        """The least seconds of a step."""
        return max(self.generation_s, self.train_s)

    @property
    def generation_s(self) -> float:
        """The least seconds that the engines need for a step."""
        return sum(self.work_s) / self.slots / self.steps + self.publish_s

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.seconds / self.steps


def steps_to_simulate(cfg: RunConfig, wanted: int) -> int:
    """Return how many steps show what a job does, of which some warm up and some wind down."""
    return min(cfg.steps, max(wanted, 4 * _margin(cfg)))


def _margin(cfg: RunConfig) -> int:
    return math.ceil(cfg.max_age) + 2


def measure(life: Life) -> Window | None:
    """Return what the middle of a run came to; None where it took too few steps."""
    margin = _margin(life.cfg)
    moments = life.moments if len(life.moments) > 2 * margin + 1 else []
    if life.result is None or len(life.moments) < 2:
        return None
    first, last = (moments[margin - 1], moments[-margin - 1]) if moments else (life.moments[0], life.moments[-1])
    records = [one.metrics for one in life.result.metrics if first.step < one.step <= last.step]
    group = life.cfg.group_size
    positions = [
        position for version, trained in _trained(life) if first.step < version <= last.step for position in trained
    ]
    work_s = tuple(life.work_s(position, sample) / life.pace for position in positions for sample in range(group))
    return Window(
        steps=len(records),
        seconds=last.at_s - first.at_s,
        samples=len(work_s),
        busy_s=last.usage.busy_s - first.usage.busy_s,
        slots=last.usage.slots,
        train_s=_mean([metrics["time/train_s"] for metrics in records]),
        publish_s=_mean([metrics["time/publish_s"] for metrics in records]),
        work_s=work_s,
    )


def row(label: str, life: Life) -> Row:
    """Return what one setting came to; what it is compared with is not known here.

    Args:
        label: What was set.
        life: The run.
    """
    window = measure(life)
    if life.result is None or window is None:
        why = f"{type(life.error).__name__}: {life.error}" if life.error else "it took too few steps to measure"
        return Row(label=label, failure=why)
    found = sorted(ages(life))
    trained, sampled = _work(life)
    done = life.usage.work_s if life.usage else 0.0
    return Row(
        label=label,
        samples_per_s=window.samples / window.seconds,
        of_bound=window.ideal_s / window.step_s,
        engine_idle=1.0 - window.busy_s / (window.slots * window.seconds),
        trainer_idle=1.0 - window.train_s / window.step_s,
        age_mean=_mean(found),
        age_p99=found[max(0, math.ceil(0.99 * len(found)) - 1)],
        age_max=found[-1],
        waste=max(0.0, 1.0 - sum(trained) / done) if done else 0.0,
        length_ratio=_mean(trained) / _mean(sampled) if sum(sampled) else 1.0,
        limit=limit(window, life.cfg),
    )


def limit(window: Window, cfg: RunConfig) -> str:
    """Say what limits a run, and what would lift it."""
    generation, train, step = window.generation_s, window.train_s, window.step_s
    numbers = f"a step takes {step:.3g} s; generating needs {generation:.3g} s, training {train:.3g} s"
    if generation >= _BUSY * step and train >= _BUSY * step:
        return f"engines and trainer are both busy all the time: {numbers}"
    if generation >= _BUSY * step:
        return f"the engines limit it: {numbers}; more engines or slots help, a faster trainer does not"
    if train >= _BUSY * step:
        return f"the trainer limits it: {numbers}; a faster trainer helps, more engines do not"
    if cfg.max_age == 0:
        return f"engines and trainer wait for each other: {numbers}; a max_age above 0 lets them work at the same time"
    if cfg.slots_in_flight * cfg.group_size < window.slots:
        lent = cfg.slots_in_flight * cfg.group_size
        return f"too little is lent out: {numbers}; {lent} samples in flight cannot fill {window.slots} slots"
    return f"the slowest samples hold batches up: {numbers}; a larger max_age, or fewer slots, would hide them"


def _trained(life: Life) -> Sequence[tuple[int, list[int]]]:
    """Return the version that each step made, and the positions of the prompts that it trained."""
    positions = {event.lease_id: event.prompt.position for event in life.events if isinstance(event, Admitted)}
    steps = (event for event in life.events if isinstance(event, Committed))
    return [(step.version, [positions[lease] for lease in step.leases]) for step in steps]


def _work(life: Life) -> tuple[list[float], list[float]]:
    """Return the work of each trained sample, and of each sampled one."""
    positions = {event.lease_id: event.prompt.position for event in life.events if isinstance(event, Admitted)}
    committed = [lease for event in life.events if isinstance(event, Committed) for lease in event.leases]

    def of(leases: Iterable[LeaseId]) -> list[float]:
        samples = range(life.cfg.group_size)
        return [life.work_s(positions[lease], sample) for lease in leases for sample in samples]

    return of(committed), of(positions)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0

"""The curves of a report: which metrics stand in which chart, and why a chart is empty."""

from collections.abc import Sequence

from conductor.review.chronicle import Chronicle
from protocols.messages import Message
from protocols.tracking import StepRecord


class Chart(Message, frozen=True, kw_only=True):
    """A chart over steps.

    Attributes:
        title: With the unit of its axis.
        metrics: Name of a metric, and what its line is called.
        evaluated: Whether it is drawn from the evaluations instead of the steps.
    """

    title: str
    metrics: tuple[tuple[str, str], ...]
    evaluated: bool = False


class Curves(Message, frozen=True, kw_only=True):
    """The metrics of one run: for each name one value a step, None where a step did not tell."""

    steps: tuple[int, ...]
    series: dict[str, tuple[float | None, ...]]


CHARTS = (
    Chart(title="reward", metrics=(("reward/mean", "mean"), ("reward/std", "deviation"))),
    Chart(
        title="evaluation",
        metrics=(("eval/reward/mean", "mean"), ("eval/reward/best", "best of a prompt")),
        evaluated=True,
    ),
    Chart(title="loss", metrics=(("loss", "loss"),)),
    Chart(title="entropy, nats a token", metrics=(("entropy", "entropy"),)),
    Chart(
        title="KL divergence, nats a token",
        metrics=(("kl/behaviour", "from the weights that sampled"), ("kl/reference", "from the reference")),
    ),
    Chart(title="gradient norm", metrics=(("grad_norm", "before clipping"),)),
    Chart(title="length, tokens", metrics=(("length/mean", "mean of what was sampled"),)),
    Chart(title="length of what was trained over what was sampled", metrics=(("length/ratio", "ratio"),)),
    Chart(
        title="age of what was trained, versions",
        metrics=(("age/mean", "mean"), ("age/p99", "99th percentile"), ("age/max", "highest")),
    ),
    Chart(
        title="thrown away, groups a step",
        metrics=(
            ("waste/groups", "for age or surplus"),
            ("groups/filtered", "filtered"),
            ("groups/dropped", "dropped"),
        ),
    ),
    Chart(title="thrown away, tokens a step", metrics=(("waste/tokens", "of finished groups"),)),
    Chart(title="throughput, samples a second", metrics=(("throughput/samples_per_s", "trained"),)),
    Chart(title="throughput, tokens a second", metrics=(("throughput/tokens_per_s", "trained"),)),
)
"""Every chart of a report, in order."""


def parts_chart(runs: Sequence[Curves]) -> tuple[Chart, ...]:
    """Return the chart of the parts of the rewards, where there are any."""
    prefix = "reward/parts/"
    names = sorted({name for run in runs for name in run.series if name.startswith(prefix)})
    if not names:
        return ()
    return (Chart(title="parts of the reward", metrics=tuple((name, name.removeprefix(prefix)) for name in names)),)


def step_curves(told: Chronicle) -> Curves:
    """Return the metrics of every step that counts."""
    return _curves([step.stepped.record for step in told.counted])


def evaluation_curves(told: Chronicle) -> Curves:
    """Return the metrics of every evaluation that counts; its step is the version that was evaluated."""
    return _curves([done.record for done in told.evaluations])


def why_empty(chart: Chart, curves: Curves, *, evaluates: bool) -> str:
    """Return why a chart of a run has no line; empty where it has one.

    Args:
        chart: Which.
        curves: What it is drawn from.
        evaluates: Whether the job has an evaluation.
    """
    if any(name in curves.series for name, _ in chart.metrics):
        return ""
    if chart.evaluated:
        return "no evaluation is done yet" if evaluates else "the job has no section [evaluation]"
    if not curves.steps:
        return "no step is closed yet"
    return f"no step tells of {' or '.join(name for name, _ in chart.metrics)}: this trainer does not report it"


def _curves(records: Sequence[StepRecord]) -> Curves:
    names = dict.fromkeys(name for record in records for name in record.metrics)
    return Curves(
        steps=tuple(record.step for record in records),
        series={name: tuple(record.metrics.get(name) for record in records) for name in names},
    )

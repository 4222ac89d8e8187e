"""Where a run stands, in words: the same ones for a terminal and for a plain stream."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from conductor.core.explanation import explain
from conductor.core.status import EngineStanding, RunStatus
from conductor.result import Accounts
from protocols.tracking import StepRecord

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_STEPS = 40
_PACE_STEPS = 20


class Standing:
    """The last step of a run and the way it came.

    Args:
        steps: Steps that the job asks for.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.step = 0
        self._metrics: dict[str, float] = {}
        self._in_flight = 0
        self._rewards: deque[float] = deque(maxlen=_SPARK_STEPS)
        self._paces_s: deque[float] = deque(maxlen=_PACE_STEPS)

    def add(self, record: StepRecord, accounts: Accounts) -> None:
        """Take in one step."""
        self.step = record.step
        self._metrics = record.metrics
        self._in_flight = accounts.open
        if "reward/mean" in record.metrics:
            self._rewards.append(record.metrics["reward/mean"])
        if "time/step_s" in record.metrics:
            self._paces_s.append(record.metrics["time/step_s"])

    def facts(self) -> list[str]:
        """Return what is known of the last step; what no metric tells is left out."""
        formats = {
            "reward/mean": "reward {:.3f}",
            "entropy": "entropy {:.3f}",  # the loss is next to nothing on policy, whatever is learned
            "throughput/samples_per_s": "{:.1f} samples/s",
            "throughput/tokens_per_s": "{:.0f} tokens/s",
            "age/mean": "age {:.1f}",
            "eval/reward/mean": "evaluated {:.3f}",
        }
        facts = [
            form.format(round(self._metrics[name], 4) + 0.0) for name, form in formats.items() if name in self._metrics
        ]
        counts = {
            "waste/groups": "wasted",
            "groups/filtered": "filtered",
            "groups/dropped": "dropped",
            "samples/masked": "masked",
        }
        facts += [f"{int(self._metrics[name])} {word}" for name, word in counts.items() if self._metrics.get(name)]
        return [*facts, f"{self._in_flight} in flight"] if self._in_flight else facts

    def left(self) -> str | None:
        """Return how long the remaining steps take at the pace of the last 20; None: not known yet."""
        if not self._paces_s:
            return None
        seconds = round((self.steps - self.step) * sum(self._paces_s) / len(self._paces_s))
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

    def spark(self) -> str:
        """Draw the mean rewards of the last 40 steps, the lowest at the bottom."""
        if not self._rewards:
            return ""
        low, high = min(self._rewards), max(self._rewards)
        scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
        return "".join(_BARS[round((reward - low) * scale)] for reward in self._rewards)


def now_lines(status: RunStatus) -> Iterator[str]:
    """Say what a run does at this moment: its slots, its engines by state, and what it waits for."""
    lent = f"{status.running} of {status.slots} slots lent out" if status.slots else ""
    ready = f"{status.ready} of {status.wanted} groups ready" if status.wanted else ""
    engines = _engines(status.engines, status.served) if status.engines else ""
    if facts := [fact for fact in (lent, ready, engines) if fact]:
        yield "  ".join(facts)
    yield explain(status).waits_for[0]


def _engines(engines: Iterable[EngineStanding], served: int | None) -> str:
    """Count the engines that are listed by what they do, the most frequent first."""
    listed = tuple(engines)
    states = Counter(_state(engine, served) for engine in listed)
    said = "engines: " + ", ".join(f"{count} {state}" for state, count in states.most_common())
    held = sum(engine.held for engine in listed)
    return f"{said}; {held} samples wait for their turn" if held else said


def _state(engine: EngineStanding, served: int | None) -> str:
    if not engine.answers:
        return "silent"
    if engine.evaluates:
        return "evaluating" if engine.live else "kept for evaluation"
    if engine.version != served:
        return "behind"
    return "paused" if engine.paused else "at work" if engine.live else "idle"

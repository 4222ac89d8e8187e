"""What happened between two train steps."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from conductor.core.evaluation import Evaluation
from conductor.core.lease import Lease
from protocols.grading import Grade, GradeFault
from protocols.rollouts import GroupReceipt


@dataclass
class Lengths:
    """Tokens and samples of a whole run."""

    tokens: int = 0
    samples: int = 0

    def add(self, tokens: int, samples: int) -> None:
        """Count some more."""
        self.tokens += tokens
        self.samples += samples

    @property
    def mean(self) -> float:
        """Tokens a sample."""
        return self.tokens / self.samples if self.samples else 0.0


@dataclass(kw_only=True)
class StepWindow:
    """Counters since the last train step; ``take`` empties them.

    Attributes:
        dropped: Groups given up.
        filtered: Groups whose samples all earned the same, filtered.
        wasted: Groups given up or begun anew for their age, or because a batch was full without them.
        wasted_tokens: Of those among them that were finished.
        failures: Failed attempts and masked samples, by class.
        totals: The same over the whole run; ``take`` leaves them.
        evaluation: The metrics of an evaluation that no step has told yet.
    """

    dropped: int = 0
    filtered: int = 0
    wasted: int = 0
    wasted_tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    evaluation: dict[str, float] = field(default_factory=dict)
    _rewards: list[float] = field(default_factory=list)
    _parts: dict[str, list[float]] = field(default_factory=dict)
    _lengths: list[int] = field(default_factory=list)
    _prompt_tokens: int = 0
    _sampled: Lengths = field(default_factory=Lengths)
    _trained: Lengths = field(default_factory=Lengths)

    def failed(self, kind: str) -> None:
        """Count a failed attempt or a masked sample."""
        self.failures[kind] += 1
        self.totals[kind] += 1

    def waste(self, lease: Lease) -> None:
        """Count a group whose work is thrown away."""
        self.wasted += 1
        self.wasted_tokens += lease.tokens

    def graded(self, receipt: GroupReceipt, grades: Sequence[Grade | GradeFault]) -> None:
        """Count a graded group, whether it will be trained or not."""
        self._prompt_tokens += receipt.prompt_tokens
        self._sampled.add(receipt.tokens, len(receipt.samples))
        self._lengths += [sample.tokens for sample in receipt.samples]
        for grade in grades:
            if isinstance(grade, GradeFault):
                self.failed(f"reward_{grade.kind}")
                continue
            self._rewards.append(grade.reward)
            for name, part in grade.parts.items():
                self._parts.setdefault(name, []).append(part)

    def length_ratio(self, receipts: Iterable[GroupReceipt]) -> float:
        """Count the groups of a batch; returns the mean length of what was trained over that of what was sampled.

        Of the whole run. Below 1 the data has been shortened: what takes long was given up more often than the rest.
        """
        for receipt in receipts:
            self._trained.add(receipt.tokens, len(receipt.samples))
        return self._trained.mean / self._sampled.mean if self._sampled.tokens else 1.0

    def take_evaluation(self) -> dict[str, float]:
        """Return the metrics of the last evaluation, once."""
        metrics, self.evaluation = self.evaluation, {}
        return metrics

    def take(self) -> dict[str, float]:
        """Return the metrics of the window and begin a new one."""
        empty = self.failures["reward_empty"]
        metrics = {
            **_moments("reward", self._rewards),
            **{f"reward/parts/{name}": _mean(values) for name, values in sorted(self._parts.items())},
            "groups/filtered": float(self.filtered),
            "groups/dropped": float(self.dropped),
            "waste/groups": float(self.wasted),
            "waste/tokens": float(self.wasted_tokens),
            "samples/masked": float(sum(n for kind, n in self.failures.items() if kind.startswith("reward_"))),
            "samples/empty": float(empty),
            **({"length/mean": _mean(self._lengths)} if self._lengths else {}),  # 0 would say that they were empty
            "tokens/completion": float(sum(self._lengths)),
            "tokens/prompt": float(self._prompt_tokens),
            **self.take_evaluation(),
        }
        self.dropped = self.filtered = self.wasted = self.wasted_tokens = self._prompt_tokens = 0
        self.failures.clear()
        self._rewards, self._parts, self._lengths = [], {}, []
        return metrics


def evaluation_metrics(evaluation: Evaluation, *, seconds: float) -> dict[str, float]:
    """Return what an evaluation came to; ``eval/reward/best`` is the mean over prompts of their best completion."""
    rewards = [[grade.reward for grade in done.grades if isinstance(grade, Grade)] for done in evaluation.graded]
    parts: dict[str, list[float]] = {}
    for grade in (grade for done in evaluation.graded for grade in done.grades):
        for name, part in grade.parts.items() if isinstance(grade, Grade) else ():
            parts.setdefault(name, []).append(part)
    flat = [reward for some in rewards for reward in some]
    return {
        **_moments("eval/reward", flat),
        **({"eval/reward/best": _mean([max(some) for some in rewards if some])} if flat else {}),
        **{f"eval/reward/parts/{name}": _mean(values) for name, values in sorted(parts.items())},
        "eval/version": float(evaluation.version),
        "eval/prompts": float(len(evaluation.graded)),
        "eval/failed": float(evaluation.failed),
        "eval/samples": float(len(flat)),
        "eval/masked": float(sum(len(done.grades) for done in evaluation.graded) - len(flat)),
        "eval/length/mean": _mean([length for done in evaluation.graded for length in done.lengths]),
        "eval/seconds": seconds,
    }


def age_metrics(ages: Iterable[int]) -> dict[str, float]:
    """Return mean, 99th percentile (nearest rank) and maximum of ages, in weight versions."""
    ordered = sorted(ages)
    rank = max(0, math.ceil(0.99 * len(ordered)) - 1)
    return {"age/mean": _mean(ordered), "age/p99": float(ordered[rank]), "age/max": float(ordered[-1])}


def _moments(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    mean = _mean(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return {f"{name}/mean": mean, f"{name}/std": math.sqrt(variance)}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0

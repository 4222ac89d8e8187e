"""Where the time of a run went, and what limited it: what the trainer waited for, step by step.

Steps follow one another without a gap, so what is on their way is on the run's way. While the trainer trains, training
is. While it waits for a batch, the group of that batch which was graded last is: it was being generated, or graded.
While engines load weights, publishing is.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

from conductor.review.chronicle import Chronicle, Step
from protocols.messages import Message

Part = Literal["generate", "grade", "train", "publish", "checkpoint", "idle"]
PARTS: tuple[Part, ...] = ("generate", "grade", "train", "publish", "checkpoint", "idle")

_WARM_UP = 1
_TOLD = 0.005  # of the time: a share below rounds to nothing
_EVENLY = 0.8  # of the largest share: the second one limits the run as well
_CLOSED_LOOP = "max_age above 0 would let them work at the same time"

_LIMITED: dict[Part, tuple[str, str]] = {
    "generate": ("the engines limited it", "more engines or slots, or shorter completions, would make it faster"),
    "grade": ("grading limited it", "a faster reward, or more processes for it, would make it faster"),
    "train": ("the trainer limited it", "a faster trainer would make it faster, and more engines would not"),
    "publish": ("publishing weights limited it", "a faster way to the engines would make it faster"),
    "checkpoint": ("writing checkpoints limited it", "fewer of them, or a faster disk, would make it faster"),
    "idle": ("none of its parts limited it", "its steps waited for the controller, for prompts, or for engines"),
}
_VERBS: dict[Part, str] = {
    "generate": "generating",
    "grade": "grading",
    "train": "training",
    "publish": "publishing",
    "checkpoint": "checkpoints",
    "idle": "idling",
}

Interval = tuple[float, float]


class Verdict(Message, frozen=True, kw_only=True):
    """What limited a run.

    Attributes:
        by: The part with the largest share; None: no step tells.
        shares: Of each part in the time of the steps, 0 to 1.
        sentence: For people.
    """

    by: Part | None
    shares: dict[Part, float]
    sentence: str


def verdict(told: Chronicle, *, max_age: float) -> Verdict:
    """Say what limited a run. Its first step, which warms up, is left out where there are others."""
    steps = told.counted
    split = [shares(step, told) for step in (steps[_WARM_UP:] or steps) if step.attempts]
    seconds: dict[Part, float] = {part: sum(one[part] for one in split) for part in PARTS}
    total = sum(seconds.values())
    if not total:
        return Verdict(by=None, shares={}, sentence="no step is closed yet whose groups the record knows")
    ranked = sorted(PARTS, key=lambda part: -seconds[part])
    first, second = ranked[0], ranked[1]
    limited, mend = _LIMITED[first]
    told_shares = ", ".join(
        f"{seconds[part] / total:.0%} {_VERBS[part]}" for part in ranked if seconds[part] >= _TOLD * total
    )
    mean_s = total / len(split)
    sentence = f"{limited}: of the {mean_s:.3g} s of a step, the way led through {told_shares}; {mend}"
    if max_age == 0 and {first, second} == {"generate", "train"} and seconds[second] > _EVENLY * seconds[first]:
        sentence += f"; {_CLOSED_LOOP}"
    return Verdict(by=first, shares={part: seconds[part] / total for part in PARTS}, sentence=sentence)


def shares(step: Step, told: Chronicle) -> dict[Part, float]:
    """Split the time of one step into what it waited for, in seconds; they add up to ``time/step_s``."""
    saved_s = min(step.metrics.get("time/checkpoint_s", 0.0), step.train_from_s - step.waits_from_s)
    wait = (step.waits_from_s + saved_s, step.train_from_s)
    publishing = _publishing(wait, told)
    published_s = sum(map(_length, publishing))
    generated_s = graded_s = 0.0
    last = max(step.attempts, key=lambda attempt: attempt.graded_s or 0.0, default=None)
    if last is not None and last.began_s is not None and last.finished_s is not None and last.graded_s is not None:
        generated_s = _outside(publishing, _common(wait, (last.began_s, last.finished_s)))
        graded_s = _outside(publishing, _common(wait, (last.finished_s, last.graded_s)))
    return {
        "generate": generated_s,
        "grade": graded_s,
        "train": step.trained_s - step.train_from_s,
        "publish": published_s + max(0.0, step.closed_s - step.trained_s),
        "checkpoint": saved_s,
        "idle": max(0.0, _length(wait) - published_s - generated_s - graded_s),
    }


def _publishing(wait: Interval, told: Chronicle) -> list[Interval]:
    """Return the parts of a wait in which engines loaded weights; publishes follow one another."""
    found: list[Interval] = []
    first = bisect_left(told.publishes, wait[0], key=lambda span: span.ended_s)
    for span in told.publishes[first:]:
        if span.began_s >= wait[1]:
            break
        found.append(_common(wait, (span.began_s, span.ended_s)))
    return found


def _common(one: Interval, other: Interval) -> Interval:
    began = max(one[0], other[0])
    return began, max(began, min(one[1], other[1]))


def _outside(taken: Sequence[Interval], interval: Interval) -> float:
    return _length(interval) - sum(_length(_common(interval, one)) for one in taken)


def _length(interval: Interval) -> float:
    return interval[1] - interval[0]

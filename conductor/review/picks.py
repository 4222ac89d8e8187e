"""Few of many: the slowest groups, and of each step the best, the median and the worst sample."""

import heapq
from collections.abc import Iterator, Sequence

from conductor.review.chronicle import Attempt, Chronicle, Step
from conductor.review.lineage import advantages, seconds
from protocols.grading import Grade
from protocols.messages import Message
from protocols.prompts import content_preview
from protocols.training import Algorithm

SLOWEST = 20
STEPS_WITH_SAMPLES = 400


class SlowGroup(Message, frozen=True, kw_only=True):
    """A group that took long."""

    name: str
    prompt: str
    generate_s: float
    grade_s: float
    tokens: int
    engines: str
    fate: str


class Pick(Message, frozen=True, kw_only=True):
    """A sample of a step.

    Attributes:
        rank: Why it is shown.
        sample: ``L17/0/3``, for ``inspect --sample``.
        versions: ``[version, count]`` for each run of tokens made by the same weights.
    """

    rank: str
    sample: str
    prompt: str
    text: str
    tokens: int
    versions: tuple[tuple[int, int], ...]
    reward: float
    parts: dict[str, float]
    advantage: float | None


def slowest(told: Chronicle) -> tuple[SlowGroup, ...]:
    """Return the groups that took longest to generate and grade, the slowest first."""
    timed = (attempt for attempt in told.all_attempts() if seconds(attempt.began_s, attempt.graded_s) is not None)
    found = heapq.nlargest(SLOWEST, timed, key=lambda attempt: seconds(attempt.began_s, attempt.graded_s) or 0.0)
    return tuple(_slow(told, attempt) for attempt in found)


def picks(told: Chronicle, algorithm: Algorithm) -> dict[int, tuple[Pick, ...]]:
    """Return samples by step: of all, or of ``STEPS_WITH_SAMPLES`` that are evenly apart, the last one among them."""
    steps = [step for step in told.counted if step.attempts]
    stride = max(1, -(-len(steps) // STEPS_WITH_SAMPLES))
    chosen = steps[::-1][::stride][::-1]
    return {step.number: tuple(_picks(told, step, algorithm)) for step in chosen}


def _picks(told: Chronicle, step: Step, algorithm: Algorithm) -> Iterator[Pick]:
    weights = advantages(step.attempts, algorithm)
    graded = sorted(
        (grade.reward, group, index)
        for group, attempt in enumerate(step.attempts)
        for index, grade in enumerate(attempt.grades)
        if isinstance(grade, Grade)
    )
    if not graded:
        return
    for rank, place in (("best", -1), ("median", len(graded) // 2), ("worst", 0)):
        _, group, index = graded[place]
        yield _pick(told, rank, step.attempts[group], index, weights[group])


def _pick(told: Chronicle, rank: str, attempt: Attempt, index: int, weights: Sequence[float | None]) -> Pick:
    grade, receipt = attempt.grades[index], attempt.receipt
    assert isinstance(grade, Grade)
    assert receipt is not None
    made = receipt.samples[index]
    return Pick(
        rank=rank,
        sample=f"{attempt.lease_id}/{attempt.number}/{index}",
        prompt=_prompt(told, attempt),
        text=made.preview,
        tokens=made.tokens,
        versions=tuple((int(segment.version), segment.count) for segment in made.segments),
        reward=grade.reward,
        parts=grade.parts,
        advantage=weights[index],
    )


def _slow(told: Chronicle, attempt: Attempt) -> SlowGroup:
    samples = () if attempt.receipt is None else attempt.receipt.samples
    return SlowGroup(
        name=f"{attempt.lease_id}/{attempt.number}",
        prompt=_prompt(told, attempt),
        generate_s=seconds(attempt.began_s, attempt.finished_s) or 0.0,
        grade_s=seconds(attempt.finished_s, attempt.graded_s) or 0.0,
        tokens=sum(sample.tokens for sample in samples),
        engines=", ".join(dict.fromkeys(sample.engine for sample in samples if sample.engine)),
        fate=attempt.fate if attempt.step is None else f"trained in step {attempt.step}",
    )


def _prompt(told: Chronicle, attempt: Attempt) -> str:
    prompt = told.prompts.get(attempt.lease_id)
    return "" if prompt is None else content_preview(prompt.content)

"""The way of one sample and of one step, from the record alone."""

from collections.abc import Sequence
from typing import Any

from conductor.algorithms.table import ALGORITHMS
from conductor.review.chronicle import Attempt, Chronicle, Step
from protocols.errors import UserError
from protocols.grading import Grade
from protocols.messages import LeaseId, Message
from protocols.prompts import content_preview
from protocols.training import Algorithm


class AttemptLine(Message, frozen=True, kw_only=True):
    """One attempt of a group; times in seconds since the run began, None where it did not come so far."""

    attempt: int
    version: int
    began_s: float | None
    finished_s: float | None
    graded_s: float | None
    fate: str


class SampleLineage(Message, frozen=True, kw_only=True):
    """One sample.

    Attributes:
        sample: ``L17/0/3``: lease, attempt, index.
        prompt, fields: What was asked, and what the reward was given with it.
        attempts: Of its group.
        engine: Which engine made it; empty where that is not known.
        tokens: Length of the completion.
        versions: ``[version, count]`` for each run of tokens made by the same weights.
        finish: Why it ended.
        text: Its beginning.
        reward, parts: What it earned; None: it has no reward, and ``fault`` says why.
        advantage: What it weighed in training; None: it was not trained, or is masked.
        batches: That claimed its group.
        step: That trained it; None: none.
        age: Of its oldest token in that step, in versions.
    """

    sample: str
    prompt: str
    fields: dict[str, Any]
    attempts: tuple[AttemptLine, ...]
    engine: str
    tokens: int
    versions: tuple[tuple[int, int], ...]
    finish: str
    text: str
    reward: float | None
    parts: dict[str, float]
    fault: str
    advantage: float | None
    batches: tuple[str, ...]
    step: int | None
    age: int | None


class GroupLine(Message, frozen=True, kw_only=True):
    """One group of a step; ``rewards`` and ``advantages`` have one entry a sample, None for a masked one."""

    lease_id: LeaseId
    attempt: int
    prompt: str
    age: int
    tokens: int
    rewards: tuple[float | None, ...]
    advantages: tuple[float | None, ...]
    generate_s: float | None
    grade_s: float | None


class StepLineage(Message, frozen=True, kw_only=True):
    """One step: its batch, its groups in order, and what the trackers were told."""

    step: int
    batch: str
    closed_s: float
    groups: tuple[GroupLine, ...]
    metrics: dict[str, float]


def sample_lineage(told: Chronicle, sample: str, algorithm: Algorithm) -> SampleLineage:
    """Return the way of the sample that ``sample`` names: ``L17/0/3``, or a request id, ``policy.1/L17/0/3/0``.

    Raises:
        UserError: There is none.
    """
    attempt, index = _find(told, sample)
    receipt = attempt.receipt
    assert receipt is not None
    made, grade = receipt.samples[index], attempt.grades[index]
    trained = attempt.step is not None
    prompt = told.prompts[attempt.lease_id]
    advantage = _advantages_of(told, attempt, algorithm)[index] if trained else None
    oldest = min((segment.version for segment in made.segments), default=None)
    return SampleLineage(
        sample=f"{attempt.lease_id}/{attempt.number}/{index}",
        prompt=content_preview(prompt.content),
        fields=prompt.fields,
        attempts=tuple(map(_line, told.attempts[attempt.lease_id])),
        engine=made.engine,
        tokens=made.tokens,
        versions=tuple((int(segment.version), segment.count) for segment in made.segments),
        finish=made.finish,
        text=made.preview,
        reward=grade.reward if isinstance(grade, Grade) else None,
        parts=grade.parts if isinstance(grade, Grade) else {},
        fault="" if isinstance(grade, Grade) else f"{grade.kind}: {grade.detail}",
        advantage=advantage,
        batches=tuple(attempt.dispatches),
        step=attempt.step,
        age=None if attempt.step is None or oldest is None else attempt.step - 1 - oldest,
    )


def step_lineage(told: Chronicle, number: int, algorithm: Algorithm) -> StepLineage:
    """Return what a step trained.

    Raises:
        UserError: There is no such step, or its events are summed up.
    """
    step = next((step for step in told.counted if step.number == number), None)
    if step is None:
        last = told.counted[-1].number if told.counted else 0
        raise UserError(f"the record tells of no step {number}; its last one is {last}")
    if not step.attempts and told.compacted:
        raise UserError(f"the groups of step {number} are summed up: the record tells of later ones only")
    columns = advantages(step.attempts, algorithm)
    groups = tuple(_group(told, *pair, step) for pair in zip(step.attempts, columns, strict=True))
    return StepLineage(
        step=step.number, batch=step.dispatch_id, closed_s=step.closed_s, groups=groups, metrics=step.metrics
    )


def advantages(batch: Sequence[Attempt], algorithm: Algorithm) -> list[tuple[float | None, ...]]:
    """Return what every sample of a batch weighed, None for one without a reward; as it was for the trainer."""
    columns = ALGORITHMS[algorithm].advantages([attempt.rewards for attempt in batch])
    told: list[tuple[float | None, ...]] = []
    for attempt, column in zip(batch, columns, strict=True):
        left = iter(column)
        told.append(tuple(next(left) if isinstance(grade, Grade) else None for grade in attempt.grades))
    return told


def _advantages_of(told: Chronicle, attempt: Attempt, algorithm: Algorithm) -> tuple[float | None, ...]:
    step = next((step for step in told.counted if step.number == attempt.step and attempt in step.attempts), None)
    if step is None:  # the rest of its batch is summed up
        return (None,) * len(attempt.grades)
    columns = advantages(step.attempts, algorithm)
    return next(column for one, column in zip(step.attempts, columns, strict=True) if one is attempt)


def _find(told: Chronicle, sample: str) -> tuple[Attempt, int]:
    parts = sample.split("/")
    if "." in parts[0]:
        parts = parts[1:4]
    shaped = len(parts) == 3 and all(part.isdigit() for part in parts[1:])
    if not shaped:
        raise UserError(f"{sample!r} names no sample; write LEASE/ATTEMPT/INDEX, as in L17/0/3")
    number, index = int(parts[1]), int(parts[2])
    attempts = told.attempts.get(LeaseId(parts[0]))
    if attempts is None:
        more = ": it was never admitted, or its events are summed up" if told.compacted else ""
        raise UserError(f"the record tells nothing of {parts[0]}{more}")
    found = next((attempt for attempt in reversed(attempts) if attempt.number == number), None)
    if found is None:
        raise UserError(f"{parts[0]} had no attempt {number}; it had {', '.join(str(one.number) for one in attempts)}")
    if found.receipt is None:
        raise UserError(f"attempt {number} of {parts[0]} was never graded, so nothing is known of it: {found.fate}")
    if index >= len(found.receipt.samples):
        raise UserError(f"{parts[0]} has samples 0 to {len(found.receipt.samples) - 1}")
    return found, index


def _line(attempt: Attempt) -> AttemptLine:
    return AttemptLine(
        attempt=attempt.number,
        version=attempt.version,
        began_s=attempt.began_s,
        finished_s=attempt.finished_s,
        graded_s=attempt.graded_s,
        fate=attempt.fate,
    )


def _group(told: Chronicle, attempt: Attempt, column: tuple[float | None, ...], step: Step) -> GroupLine:
    samples = () if attempt.receipt is None else attempt.receipt.samples
    prompt = told.prompts.get(attempt.lease_id)
    return GroupLine(
        lease_id=attempt.lease_id,
        attempt=attempt.number,
        prompt="" if prompt is None else content_preview(prompt.content),
        age=step.number - 1 - attempt.oldest,
        tokens=sum(sample.tokens for sample in samples),
        rewards=tuple(grade.reward if isinstance(grade, Grade) else None for grade in attempt.grades),
        advantages=column,
        generate_s=seconds(attempt.began_s, attempt.finished_s),
        grade_s=seconds(attempt.finished_s, attempt.graded_s),
    )


def seconds(began_s: float | None, ended_s: float | None) -> float | None:
    """Return how long something took; None where one end is not known."""
    return None if began_s is None or ended_s is None else ended_s - began_s

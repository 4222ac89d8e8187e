"""Asking a grader for the grades of one group."""

import math

from conductor.context import RunContext
from conductor.patience import patiently
from protocols.errors import InvariantError, PayloadLost
from protocols.grading import Grade, GradeFault, GradeReport, GradeRequest, GraderPort
from protocols.prompts import Prompt
from protocols.rollouts import GroupReceipt


async def grades_of(
    ctx: RunContext, grader: GraderPort, prompt: Prompt, receipt: GroupReceipt
) -> tuple[Grade | GradeFault, ...]:
    """Ask for the grades of the samples that have tokens, and put all of them in order.

    Raises:
        Transient: The payload is lost, or the grader fails for these samples while it grades others.
        BudgetExhausted: The grader is lost or too slow, and stays so.
        InvariantError: It answered something else.
    """
    asked = tuple([index for index, sample in enumerate(receipt.samples) if sample.tokens])
    empty = GradeFault(kind="empty", detail="the completion has no tokens")
    grades: list[Grade | GradeFault] = [empty] * len(receipt.samples)
    if asked:
        request = GradeRequest(
            lease_id=receipt.lease_id,
            attempt=receipt.attempt,
            prompt=prompt,
            payload=receipt.payload,
            samples=asked,
        )
        report = await patiently(ctx, "grading", receipt.lease_id, lambda: grader.grade(request), final=PayloadLost)
        _check(request, report)
        for index, grade in zip(asked, report.grades, strict=True):
            grades[index] = grade
            if isinstance(grade, GradeFault):
                ctx.log.warning(
                    "reward.failed", lease_id=receipt.lease_id, sample=index, kind=grade.kind, detail=grade.detail
                )
    return tuple(grades)


def _check(request: GradeRequest, report: GradeReport) -> None:
    expected = (request.lease_id, request.attempt, len(request.samples))
    if (report.lease_id, report.attempt, len(report.grades)) != expected:
        raise InvariantError(
            f"grades of {report.lease_id} attempt {report.attempt} ({len(report.grades)} of them) "
            f"for {request.lease_id} attempt {request.attempt} ({len(request.samples)} asked for)"
        )
    if not all(math.isfinite(grade.reward) for grade in report.grades if isinstance(grade, Grade)):
        raise InvariantError(f"a reward of {report.lease_id} is not finite: {report.grades}")

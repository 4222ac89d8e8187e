"""Scripted workloads that belong together: one payload store, one inference controller."""

from collections.abc import Callable
from dataclasses import dataclass

from backends.sim.grader import Rewards, ScriptedGrader, alternating
from backends.sim.payloads import ScriptedPayloads
from backends.sim.prompts import ScriptedPrompts
from backends.sim.trainer import ScriptedTrainer
from protocols.errors import ConductorError
from protocols.rollouts import RolloutLease
from tests.support.scripted.executor import ScriptedExecutor, never, one_second
from tests.support.scripted.inference import ScriptedInference


@dataclass(frozen=True, kw_only=True)
class ScriptedWorkloads:
    """All that a run needs, without an engine, a model or a process."""

    payloads: ScriptedPayloads
    prompts: ScriptedPrompts
    inference: ScriptedInference
    executor: ScriptedExecutor
    grader: ScriptedGrader
    trainer: ScriptedTrainer


def scripted_workloads(
    prompts: int | ScriptedPrompts = 100,
    *,
    duration_s: Callable[[RolloutLease], float] = one_second,
    tokens: int | Callable[[RolloutLease], int] = 4,
    failure: Callable[[RolloutLease], ConductorError | None] = never,
    rewards: Rewards = alternating,
    grade_s: float = 0.0,
    step_s: float = 1.0,
    publish_s: float = 0.0,
) -> ScriptedWorkloads:
    """Return workloads that share a payload store, and whose tokens carry the published version.

    Args:
        prompts: How many there are, in one epoch; or a source.
        duration_s: Of a group, for the executor.
        tokens: Of every completion of a group, for the executor.
        failure: Of a group, for the executor.
        rewards: Of a group, for the grader.
        grade_s: Of a group, for the grader.
        step_s: Of a step, for the trainer.
        publish_s: Of a publish, for the inference controller.
    """
    payloads = ScriptedPayloads()
    inference = ScriptedInference(publish_s=publish_s)
    return ScriptedWorkloads(
        payloads=payloads,
        prompts=ScriptedPrompts(prompts) if isinstance(prompts, int) else prompts,
        inference=inference,
        executor=ScriptedExecutor(payloads, inference, duration_s=duration_s, failure=failure, tokens=tokens),
        grader=ScriptedGrader(rewards, grade_s=grade_s),
        trainer=ScriptedTrainer(payloads, step_s=step_s),
    )

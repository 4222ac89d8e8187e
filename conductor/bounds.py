"""Whether the bounds of a job fit one another: deadlines nest, and what is in flight has room."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from conductor.config import CheckpointConfig, Deadlines, EvaluationConfig, PositiveInt, slots_in_flight
from conductor.decoding import decode
from protocols.adapters import UnknownAdapter, resolve
from protocols.errors import Problem
from protocols.pauses import LONGEST_S
from protocols.sections import Section


def nested(deadlines: Deadlines) -> Iterable[Problem]:
    """Find deadlines that cut what they should outlast."""
    waits = {**deadlines.others, "a pause between two tries": LONGEST_S}
    longer = {name: seconds for name, seconds in waits.items() if seconds >= deadlines.stall_s}
    if longer:
        listed = ", ".join(f"{name} ({seconds:g})" for name, seconds in longer.items())
        why = f"a run that waits for as long as these allow does not stand still: {listed}"
        mend = f"give more than {max(longer.values()):g}, or leave it out"
        yield Problem(field="deadlines.stall", value=f"{deadlines.stall_s:g}", why=why, mend=mend)
    if deadlines.reconcile < deadlines.abort:
        why = f"one try of an abort takes up to deadlines.abort, {deadlines.abort:g}"
        mend = f"give at least {deadlines.abort:g}"
        yield Problem(field="deadlines.reconcile", value=f"{deadlines.reconcile:g}", why=why, mend=mend)


def grading_nests(deadlines: Deadlines, reward: Section | None) -> Iterable[Problem]:
    """Find a deadline of one completion that the deadline of its group would cut."""
    seconds = None if reward is None else reward.options.get("deadline_s")
    if isinstance(seconds, int | float) and seconds >= deadlines.reward:
        why = f"grading one group ends at deadlines.reward, {deadlines.reward:g}, and with it every sample of the group"
        mend = f"give less than {deadlines.reward:g}, or more to deadlines.reward"
        yield Problem(field="reward.deadline_s", value=f"{seconds:g}", why=why, mend=mend)


def evaluation_nests(deadlines: Deadlines, evaluation: EvaluationConfig | None) -> Iterable[Problem]:
    """Find that an evaluation would be cut before one of its groups could be."""
    least = deadlines.group + deadlines.reward
    if evaluation is not None and deadlines.evaluation < least:
        why = f"generating and grading one of its groups takes up to {least:g} (deadlines.group + deadlines.reward)"
        value = f"{deadlines.evaluation:g}"
        yield Problem(field="deadlines.evaluation", value=value, why=why, mend=f"give at least {least:g}")


def best_are_found(checkpoint: CheckpointConfig, evaluation: EvaluationConfig | None) -> Iterable[Problem]:
    """Find that the best checkpoints are wanted, and none would ever be known to be one."""
    if not checkpoint.keep_best:
        return
    why = mend = ""
    if evaluation is None or not evaluation.every:
        why = "which checkpoint is good is known when its version was evaluated, and nothing is while the run trains"
        mend = "set evaluation.every, or leave it out"
    elif not checkpoint.every or evaluation.every % checkpoint.every:
        why = f"a version that is evaluated, each {evaluation.every} steps, would have no checkpoint"
        mend = f"set checkpoint.every to {evaluation.every}, or to what divides it"
    if why:
        yield Problem(field="checkpoint.keep_best", value=str(checkpoint.keep_best), why=why, mend=mend)


_OF_CAPACITY = {
    "batch_groups", "group_size", "max_age", "oversample", "slots", "engine", "engines", "evaluation",
}  # fmt: skip


def find_capacity_problems(fields: Mapping[str, Any], job_dir: str) -> Iterable[Problem]:
    """Find that more samples may be in flight than the engines take: they would refuse groups until they are given up.

    Asks the engine's adapter, where that says how many one takes (``capacity``).
    """
    if not fields.keys() >= _OF_CAPACITY:
        return
    evaluation: EvaluationConfig | None = fields["evaluation"]
    reserved = 0 if evaluation is None else evaluation.engines or 0
    if reserved >= fields["engines"]:
        return  # that is what is wrong, and ``reserved_fits`` says it
    capacity = _capacity(fields["engine"], fields["engines"] - reserved, job_dir)
    groups = slots_in_flight(fields["slots"], fields["batch_groups"], fields["max_age"], fields["oversample"])
    samples = groups * fields["group_size"]
    evaluated = 0 if reserved else _evaluated(evaluation, fields["batch_groups"])
    if capacity is None or samples + evaluated <= capacity or (groups == 1 and not evaluated):
        return
    beside = f" beside {evaluated} of an evaluation" if evaluated else ""
    take = "the engine takes" if fields["engines"] - reserved == 1 else f"{fields['engines'] - reserved} engines take"
    why = f"{groups} groups of {fields['group_size']} are {samples} samples{beside}, and {take} {capacity}"
    most = (capacity - evaluated) // fields["group_size"]
    fewer = f"give at most {most}, or let" if most > 0 else "let"
    value = None if fields["slots"] is None else str(groups)
    yield Problem(field="slots", value=value, why=why, mend=f"{fewer} each engine take more (engine.max_waiting)")


def reserved_fits(engines: int, evaluation: EvaluationConfig | None) -> Iterable[Problem]:
    """Find that the engines which only evaluate leave none for the training."""
    if evaluation is not None and evaluation.engines is not None and evaluation.engines >= engines:
        why = f"the run has {engines} engine{'' if engines == 1 else 's'}, and the training needs at least one"
        mend = f"give fewer than {engines}, or more engines" if engines > 1 else "leave it out, or give more engines"
        yield Problem(field="evaluation.engines", value=str(evaluation.engines), why=why, mend=mend)


def _evaluated(evaluation: EvaluationConfig | None, batch_groups: PositiveInt) -> int:
    return 0 if evaluation is None else (evaluation.slots or batch_groups) * evaluation.samples


def _capacity(engine: Section, engines: PositiveInt, job_dir: str) -> int | None:
    try:
        adapter = resolve("engine", engine.kind, job_dir)
    except UnknownAdapter:
        return None  # told by those who look for it
    options, _ = decode(adapter.Config, engine.options) if hasattr(adapter, "Config") else (None, [])
    ask = getattr(adapter, "capacity", None)
    return None if ask is None or not isinstance(options, msgspec.Struct) else engines * ask(options)

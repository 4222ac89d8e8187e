"""What a run waits for, in words, and what would let it go on: from its status alone."""

from collections.abc import Iterable, Iterator

from conductor.core.status import EngineStanding, GroupStatus, RunStatus, WaitStatus
from protocols.messages import Message, WeightVersion

_TOLD = 5
"""Groups and waits told of one by one; the others are counted."""


class Explanation(Message, frozen=True, kw_only=True):
    """Sentences, the most telling first: what is waited for, and what would end each of these waits."""

    waits_for: tuple[str, ...]
    unblocked_by: tuple[str, ...]

    def __str__(self) -> str:
        """Return all of it, a sentence a line."""
        return "\n".join([*self.waits_for, *(f"unblocked by: {sentence}" for sentence in self.unblocked_by)])


def explain(status: RunStatus) -> Explanation:
    """Say what a run waits for at the moment of its status."""
    return Explanation(waits_for=tuple(_waits_for(status)), unblocked_by=tuple(_unblocked_by(status)))


def stalled(status: RunStatus) -> str:
    """Return the verdict on a run that stands still: who, where, for how long, and what would unblock it."""
    head = f"nothing has moved for {status.quiet_s:g} s (deadlines.stall), at step {status.step} of {status.steps}"
    return f"{head}:\n{explain(status)}"


def explain_engines(engines: Iterable[EngineStanding], *, served: WeightVersion | None) -> Iterator[str]:
    """Say what each engine does, and what is wrong with it where it does not serve the version it should."""
    for engine in engines:
        if not engine.answers:
            yield f"engine {engine.name} does not answer"
            continue
        serves = "has no weights" if engine.version is None else f"serves v{engine.version}"
        should = "" if engine.version == served or engine.evaluates else f" where v{served} is published"
        paused = ", and is paused" if engine.paused else ""
        yield f"engine {engine.name} {serves}{should}, with {engine.live} live requests{paused}"


def _waits_for(status: RunStatus) -> Iterator[str]:
    if status.phase != "training":
        yield f"the run is {status.phase}"
    elif status.trainer_idle:
        yield f"the trainer waits for a batch: {status.ready} of {status.wanted} groups are graded"
        yield from _shut(status)
    else:
        yield f"the trainer is at work on step {status.step + 1}"
    yield from _told("group", status.running, [_group(group) for group in status.groups])
    yield from _told("wait", len(status.waits), [_wait(wait) for wait in status.waits])
    if (evaluation := status.evaluation) is not None:
        done = f"{evaluation.graded} of {evaluation.prompts} prompts are graded, {evaluation.failed} failed"
        waits = status.staged is not None and not evaluation.reserved
        held = f"; v{status.staged} is published after it" if waits else ""
        yield f"v{evaluation.version} is evaluated for {evaluation.seconds:.1f} s: {done}{held}"
    yield from explain_engines(status.engines, served=status.served)


def _told(what: str, count: int, sentences: list[str]) -> Iterator[str]:
    yield from sentences[:_TOLD]
    if count > min(_TOLD, len(sentences)):
        more = count - min(_TOLD, len(sentences))
        yield f"and {more} more {what if more == 1 else f'{what}s'}"


def _shut(status: RunStatus) -> Iterator[str]:
    """Say why no more groups are lent out, where the batch needs more than run."""
    if status.grants > 0 or status.ready + status.running >= status.wanted:
        return
    if status.exhausted:
        yield "the prompts have come to their end"
    elif status.epoch_over:
        yield "the epoch has no more prompts; the next one begins when the last batch of this one is claimed"
    elif status.running >= status.slots:
        yield f"all {status.slots} slots are lent out"
    elif status.served != status.trained:
        served = "nothing" if status.served is None else f"v{status.served}"
        yield f"groups for v{status.trained} are lent out once the engines serve it; they serve {served}"
    else:
        yield "admission grants no group"


def _group(group: GroupStatus) -> str:
    head = f"{group.lease_id} (attempt {group.attempt}) is {group.state}"
    return f"{head}: {group.call} for {_of(group)}" if group.call else f"{head}, in no call"


def _wait(wait: WaitStatus) -> str:
    return f"{_called(wait.call, wait.of)} for {_of(wait)}"


def _called(call: str, of: str) -> str:
    return f"{call} of {of}" if of else call


def _of(wait: GroupStatus | WaitStatus) -> str:
    return f"{wait.seconds:.1f} s of at most {wait.deadline_s:g} s"


def _unblocked_by(status: RunStatus) -> Iterator[str]:
    known = False
    for wait in status.waits[:_TOLD]:
        yield f"the end of {_called(wait.call, wait.of)}, {_latest(wait)}"
        known = True
    for group in [group for group in status.groups if group.call][:_TOLD]:
        yield f"the end of {_called(group.call, group.lease_id)}, {_latest(group)}"
        known = True
    for engine in status.engines:
        if not engine.answers:
            yield f"an answer of engine {engine.name}"
        elif engine.paused:
            yield f"engine {engine.name} being resumed"
        elif engine.version is None and not engine.evaluates:
            yield f"engine {engine.name} loading v{status.trained}"
    if status.phase == "training" and status.trainer_idle and status.grants > 0:
        yield f"a prompt: {status.grants} more groups may be lent out"
        known = True
    if not known:
        yield "nothing that is open: no call of a port is waited for"


def _latest(wait: GroupStatus | WaitStatus) -> str:
    left = wait.deadline_s - wait.seconds
    return f"at the latest in {left:.0f} s" if left > 0 else f"overdue for {-left:.0f} s: it ignores its deadline"

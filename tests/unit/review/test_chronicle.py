"""A record put in order: fates, and times on one axis over several lives."""

from typing import Any

from conductor.review.chronicle import chronicle
from protocols.grading import Grade
from protocols.incidents import Incident
from protocols.ledger import (
    Aborting,
    Admitted,
    Checkpointed,
    Claimed,
    Committed,
    Generating,
    Graded,
    Readmitted,
    Restored,
    Resumed,
    RunStarted,
    Stepped,
    Unclaimed,
)
from protocols.messages import DispatchId, LeaseId, PayloadRef, WeightVersion, WorkerId
from protocols.prompts import Prompt, SourceState, TextPrompt
from protocols.rollouts import GroupReceipt
from protocols.tracking import StepRecord

L0, D0, D1 = LeaseId("L0"), DispatchId("D0"), DispatchId("D1")
START = RunStarted(
    run_id="r", job={}, version=WeightVersion(0), prompts=SourceState(position=0, seed=0), fingerprint=""
)
ADMITTED = Admitted(lease_id=L0, prompt=Prompt(position=0, content=TextPrompt(text="2+2=")), group_size=0)
INCIDENT: dict[str, Any] = {
    "role": "rollout",
    "workers": (WorkerId("rollout/0"),),
    "cause": "worker",
    "level": "worker",
}


def generating(at_s: float, attempt: int = 0) -> Generating:
    return Generating(lease_id=L0, attempt=attempt, at_s=at_s)


def graded(finished_at_s: float, at_s: float, attempt: int = 0) -> Graded:
    payload = PayloadRef(owner="", key="")
    receipt = GroupReceipt(lease_id=L0, attempt=attempt, prompt_tokens=1, payload=payload, samples=())
    return Graded(lease_id=L0, receipt=receipt, grades=(Grade(reward=1.0),), finished_at_s=finished_at_s, at_s=at_s)


def claimed(dispatch_id: DispatchId, version: int = 0) -> Claimed:
    return Claimed(dispatch_id=dispatch_id, version=WeightVersion(version), leases=(L0,))


def committed(dispatch_id: DispatchId, version: int) -> Committed:
    return Committed(dispatch_id=dispatch_id, version=WeightVersion(version), leases=(L0,))


def stepped(step: int, seconds: float, *publishes: tuple[float, float], **times: float) -> Stepped:
    metrics = {f"time/{name}": value for name, value in times.items()}
    record = StepRecord(step=step, metrics=metrics)
    return Stepped(record=record, seconds=seconds, publishes=publishes)


def test_each_attempt_has_its_own_fate_and_times() -> None:
    readmitted = Readmitted(lease_id=L0, attempt=1)
    aborted = Aborting(lease_id=L0, reason="EngineLost")
    told = chronicle((START, ADMITTED, generating(1.0), aborted, readmitted, generating(5.0, 1), graded(7.0, 8.0, 1)))
    first, second = told.attempts[L0]
    assert (first.fate, first.began_s, first.finished_s) == ("aborted: EngineLost", 1.0, None)
    assert (second.fate, second.began_s, second.finished_s, second.graded_s) == ("graded", 5.0, 7.0, 8.0)


def test_a_step_knows_its_groups_and_when_it_waited_and_trained() -> None:
    """``time/step_s`` ends when the step is closed, and holds the checkpoint, the wait and the training in turn."""
    close = stepped(1, 20.0, (2.0, 4.0), step_s=10.0, wait_s=3.0, train_s=5.0, checkpoint_s=1.0)
    told = chronicle((START, ADMITTED, generating(1.0), graded(2.0, 3.0), claimed(D0), committed(D0, 1), close))
    (step,) = told.counted
    assert (step.dispatch_id, [attempt.lease_id for attempt in step.attempts]) == (D0, [L0])
    assert (step.waits_from_s, step.train_from_s, step.trained_s, step.closed_s) == (10.0, 14.0, 19.0, 20.0)
    assert [(span.began_s, span.ended_s) for span in told.publishes] == [(2.0, 4.0)]
    assert told.attempts[L0][0].step == 1


def test_a_batch_that_was_taken_back_is_claimed_again() -> None:
    events = (claimed(D0), Unclaimed(dispatch_id=D0), claimed(D1), committed(D1, 1), stepped(1, 9.0))
    told = chronicle((START, ADMITTED, generating(1.0), graded(2.0, 3.0), *events))
    assert told.attempts[L0][0].dispatches == [D0, D1]
    assert told.counted[0].dispatch_id == D1


def test_what_a_resume_goes_back_behind_does_not_count_and_comes_before_the_next_life() -> None:
    """The run's clock goes back to the checkpoint; on the axis of a reader nothing happens twice at a time."""
    saved = Checkpointed(version=WeightVersion(1), kept=(WeightVersion(1),), began_at_s=10.0, at_s=11.0)
    first = (stepped(1, 10.0), saved, generating(12.0), graded(13.0, 14.0), claimed(D0, 1), committed(D0, 2))
    later = (Resumed(version=WeightVersion(1)), Restored(lease_id=L0), claimed(D1, 1), committed(D1, 2))
    told = chronicle((START, ADMITTED, *first, stepped(2, 20.0), *later, stepped(2, 15.0)))
    assert [(step.number, step.closed_s, step.counts) for step in told.steps] == [
        (1, 10.0, True),
        (2, 20.0, False),
        (2, 25.0, True),
    ]
    assert told.lives == [0.0, 20.0]
    assert told.attempts[L0][0].step == 2
    assert [(span.began_s, span.ended_s) for span in told.checkpoints] == [(10.0, 11.0)]


def test_what_was_open_when_a_run_was_killed_is_told_as_lost() -> None:
    told = chronicle((START, ADMITTED, generating(12.0), Resumed(version=WeightVersion(0)), generating(1.0, 1)))
    first, second = told.attempts[L0]
    assert first.fate == "lost: resumed from step 0"
    assert (second.fate, second.began_s) == ("open", 13.0)


def test_an_incident_ended_when_it_was_written() -> None:
    incident = Incident(**INCIDENT, attempts=1, verdict="restored", detail="", version=WeightVersion(0), seconds=4.0)
    told = chronicle((START, ADMITTED, generating(12.0), incident))
    assert [(span.began_s, span.ended_s) for span in told.incidents] == [(8.0, 12.0)]

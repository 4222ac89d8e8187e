"""The laws of the controller, asked of a simulated run when it is over (laws 1, 2, 3, 5, 7 and 8)."""

from collections import Counter
from collections.abc import Iterator, Mapping

from conductor.core.leases import LeaseTable
from conductor.past import rebuild
from conductor.simulation.life import Life
from protocols.errors import ConductorError, CorruptLedger, InvariantError
from protocols.faults import AT_A_MOMENT, Fault, FaultPlan
from protocols.ledger import Claimed, Committed, Graded
from protocols.messages import LeaseId

LONGEST_S = 3_000.0
"""Virtual seconds within which a small run has ended, whatever went wrong."""

_LIES = frozenset({"doubled_reply", "reordered_replies", "wrong_version"})
"""Faults that break a port's promises: a run that finds that out says that a rule is broken."""

_NOTICED_S = 5.0
"""Seconds until notice is heard, and a worker that was drained is launched elsewhere."""

_WAITED_FOR = 0.5
"""Share of ``deadlines.publish`` for which the last engine may be away, its return to be noticed included."""


def broken(life: Life, plan: FaultPlan) -> tuple[str, ...]:
    """Return what a run broke, one line for each law; none where all of them hold.

    Args:
        life: How it went.
        plan: What was to go wrong.
    """
    hit = [plan.faults[one.index] for one in life.observed.hits]
    return tuple(
        f"law {law}: {line}"
        for law, lines in (
            (7, _ends_as_it_should(life, hit)),
            (1, _keeps_its_books(life)),
            (2, _trains_once(life)),
            (3, _keeps_the_age(life)),
            (5, _leaves_nothing(life, hit)),
            (8, _heeds_notice(life, plan)),
        )
        for line in lines
    )


def ages(life: Life) -> Iterator[int]:
    """Yield the age of the oldest token of every trained sample, in weight versions."""
    versions = {event.dispatch_id: event.version for event in life.events if isinstance(event, Claimed)}
    oldest: Mapping[LeaseId, tuple[int, ...]] = {
        event.lease_id: tuple(
            min(segment.version for segment in sample.segments) for sample in event.receipt.samples if sample.segments
        )
        for event in life.events
        if isinstance(event, Graded)
    }
    for event in life.events:
        if isinstance(event, Committed):
            for lease_id in event.leases:
                yield from (versions[event.dispatch_id] - version for version in oldest[lease_id])


def _ends_as_it_should(life: Life, hit: list[Fault]) -> Iterator[str]:
    """Law 7: a run ends in time, and what ends it is a verdict that something that happened explains."""
    if life.seconds > LONGEST_S:
        yield f"it took {life.seconds:.0f} s"
    error = life.error
    if error is None:
        return
    if hit and all(_is_made_up_for(life, fault) for fault in hit) and len(hit) < life.cfg.attempts:
        yield f"another attempt was left, and it ended with {type(error).__name__}: {error}"
    said = f"{type(error).__name__}: {error}"
    if not isinstance(error, ConductorError):
        yield f"it ended with what nobody foresaw, {said}"
    elif not hit:
        yield f"nothing went wrong, and it ended with {said}"
    elif isinstance(error, InvariantError) and not any(fault.kind in _LIES for fault in hit):
        yield f"no port lied, and it ended with {said}"


def _is_made_up_for(life: Life, fault: Fault) -> bool:
    """Return whether another try gets round a fault.

    It does not where a port lied, where the record cannot be written, where the trainer is gone and its parameters with
    it, or where the only engine stays away for too long.
    """
    deadlines = life.cfg.deadlines
    if fault.kind in _LIES:
        return False
    if fault.method == "Ledger.append":
        return fault.kind == "slow_ledger" and fault.lasts_s < deadlines.record
    if fault.kind in {"crash", *AT_A_MOMENT} and fault.method.startswith("Trainer"):
        return False
    if fault.kind in {"crash", "preemption"} and fault.method.startswith("Engine"):
        return life.cfg.engines - life.cfg.reserved_engines > 1 or fault.lasts_s < _WAITED_FOR * deadlines.publish
    return True


def _keeps_its_books(life: Life) -> Iterator[str]:
    """Law 1: submitted = trained + filtered + dropped + open, for groups and for samples."""
    table = _table(life)
    if isinstance(table, str):
        yield table
        return
    if not table.accounts.balanced or not table.sample_accounts.balanced:
        yield f"the books do not balance: {table.accounts}, {table.sample_accounts}"
    if life.result is not None and table.accounts != life.result.accounts:
        yield f"the result says {life.result.accounts}, the record {table.accounts}"
    if life.result is not None and (life.result.accounts.open or life.result.steps != life.cfg.steps):
        yield f"it finished after {life.result.steps} of {life.cfg.steps} steps with {life.result.accounts}"


def _trains_once(life: Life) -> Iterator[str]:
    """Law 2: no group is trained twice, and none by an attempt that was aborted."""
    trained = Counter(attempt.partition("/")[0] for step in life.observed.trained for attempt in step)
    if twice := [lease for lease, times in trained.items() if times > 1]:
        yield f"trained twice: {', '.join(twice)}"
    finished = {f"{event.lease_id}/{event.receipt.attempt}" for event in life.events if isinstance(event, Graded)}
    for step in life.observed.trained:
        if strangers := [attempt for attempt in step if attempt not in finished]:
            yield f"trained and never graded: {', '.join(strangers)}"
    committed = [lease for event in life.events if isinstance(event, Committed) for lease in event.leases]
    if unknown := [lease for lease in committed if lease not in trained]:
        yield f"committed and never trained: {', '.join(unknown)}"


def _keeps_the_age(life: Life) -> Iterator[str]:
    """Law 3: where the job's policy bounds age, nothing older is trained; nothing is from the future."""
    found = sorted(ages(life))
    if found and found[0] < 0:
        yield f"a token was made by weights {-found[0]} versions ahead of the trainer"
    if found and life.cfg.max_age == 0 and found[-1] > 0:
        yield f"on policy, and a token was {found[-1]} versions old"


def _leaves_nothing(life: Life, hit: list[Fault]) -> Iterator[str]:
    """Law 5: no engine runs anything when the run is over, unless the run said so; no payload is left."""
    if life.observed.unstopped and "may still run" not in _told(life.error):
        yield f"still running when their engine was ended: {', '.join(life.observed.unstopped)}"
    excused = any(fault.method == "Payload.release" for fault in hit)
    if life.owners and not excused:
        yield f"payloads left: {', '.join(sorted(life.owners))}"


def _heeds_notice(life: Life, plan: FaultPlan) -> Iterator[str]:
    """Law 8: an engine that is told in time has left before its place is taken away.

    In time is as long as it may finish what it writes, and ``_NOTICED_S`` more. Other faults may hold that up.
    """
    (fault, *others) = plan.faults or (None,)
    if fault is None or others or fault.kind != "notice" or fault.method != "Engine":
        return
    if fault.lasts_s >= life.cfg.deadlines.publish / 2 + _NOTICED_S and life.observed.unheeded:
        yield f"told {fault.lasts_s:g} s before and there all the same: {', '.join(life.observed.unheeded)}"


def _told(error: BaseException | None) -> str:
    """Return all that an error says, with its notes."""
    return "" if error is None else "\n".join([str(error), *getattr(error, "__notes__", ())])


def _table(life: Life) -> LeaseTable | str:
    try:
        return rebuild(life.events)
    except CorruptLedger as exc:
        return f"the record contradicts itself: {exc}"

"""A run as a timeline for Perfetto: who worked on what, and from which group to which step its work went.

The form is Chrome's trace events (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU):
a process for each engine and each other part, a thread for each thing that it did at the same time.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from conductor.review.chronicle import Attempt, Chronicle, Step
from protocols.incidents import Incident
from protocols.ledger import Checkpointed, Stepped
from protocols.prompts import content_preview

_US = 1e6
_UNNAMED = "engines"


class TraceEvent(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One event, with the names that the format gives its fields; ``ts`` and ``dur`` are microseconds.

    They are whole ones, so that a slice which begins where another ends does not overlap with it by a rounding.
    """

    name: str
    ph: Literal["X", "M", "s", "t", "f"]
    pid: int
    tid: int
    ts: int | None = None
    dur: int | None = None
    cat: str | None = None
    id: int | None = None
    bp: str | None = None
    args: Mapping[str, Any] | None = None


@dataclass(kw_only=True)
class Slice:
    """Something that took time.

    Attributes:
        process: Who did it: an engine by name, or ``graders``, ``trainer``, ``publisher``, ``checkpoints``,
            ``lost workers``.
        began_s, ended_s: Seconds on the axis of the chronicle.
        flows: Begin, middle or end of the ways of which groups it is; a way leads from a lease to its step.
    """

    process: str
    name: str
    began_s: float
    ended_s: float
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    flows: tuple[tuple[Literal["s", "t", "f"], int], ...] = ()

    @property
    def span_us(self) -> tuple[int, int]:
        """When it began and ended, in microseconds; what a way leads through takes at least one.

        Perfetto takes an empty slice for a part of the next one, and would lead the ways of that one to it.
        """
        began, ended = round(self.began_s * _US), round(self.ended_s * _US)
        return began, max(ended, began + 1) if self.flows else ended


def trace(told: Chronicle) -> bytes:
    """Return the file: one JSON object."""
    return msgspec.json.encode({"traceEvents": list(events(told)), "displayTimeUnit": "ms"})


def events(told: Chronicle) -> Iterator[TraceEvent]:
    """Yield every event of a run: the names of processes, slices, and flows from a group's lease to its step."""
    slices: dict[str, list[Slice]] = {}
    for one in slices_of(told):
        began, ended = one.span_us
        if ended > began:
            slices.setdefault(one.process, []).append(one)
    for pid, process in enumerate(sorted(slices, key=_place), start=1):
        yield TraceEvent(name="process_name", ph="M", pid=pid, tid=0, args={"name": process})
        yield TraceEvent(name="process_sort_index", ph="M", pid=pid, tid=0, args={"sort_index": pid})
        for tid, one in _in_lanes(slices[process]):
            ts, end = one.span_us
            yield TraceEvent(name=one.name, ph="X", pid=pid, tid=tid, ts=ts, dur=end - ts, cat=process, args=one.args)
            for phase, flow in one.flows:
                # bound to the slice that it lies in, not to the one that comes next
                yield TraceEvent(
                    name="lease",
                    ph=phase,
                    pid=pid,
                    tid=tid,
                    ts=ts,
                    cat="lease",
                    id=flow,
                    bp="e" if phase == "f" else None,
                )


def _place(process: str) -> tuple[int, int, str]:
    last = ("graders", "trainer", "publisher", "checkpoints", "lost workers")
    return (last.index(process) + 1 if process in last else 0, len(process), process)


def _in_lanes(slices: Iterable[Slice]) -> Iterator[tuple[int, Slice]]:
    """Give each slice the first lane that is free when it begins: slices of one lane never overlap."""
    free, busy, lanes = list[int](), list[tuple[int, int]](), 0
    for one in sorted(slices, key=lambda one: one.span_us):
        began, ended = one.span_us
        while busy and busy[0][0] <= began:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            lanes += 1
            heapq.heappush(free, lanes)
        lane = heapq.heappop(free)
        heapq.heappush(busy, (ended, lane))
        yield lane, one


def slices_of(told: Chronicle) -> Iterator[Slice]:
    """Yield all that took time in a run, in no order."""
    flows = {id(attempt): number for number, attempt in enumerate(told.all_attempts(), start=1)}
    trained = {id(attempt) for step in told.steps for attempt in step.attempts}
    for attempt in told.all_attempts():
        yield from _attempt(told, attempt, flows[id(attempt)], trained=id(attempt) in trained)
    for step in told.steps:
        yield from _step(step, flows)
    for span in told.publishes:
        assert isinstance(span.event, Stepped)
        yield Slice(process="publisher", name="publish", began_s=span.began_s, ended_s=span.ended_s)
    for span in told.checkpoints:
        assert isinstance(span.event, Checkpointed)
        name = f"step-{span.event.version}"
        yield Slice(process="checkpoints", name=name, began_s=span.began_s, ended_s=span.ended_s)
    for span in told.incidents:
        assert isinstance(span.event, Incident)
        name, facts = ", ".join(span.event.workers), msgspec.to_builtins(span.event)
        yield Slice(process="lost workers", name=name, began_s=span.began_s, ended_s=span.ended_s, args=facts)


def _attempt(told: Chronicle, attempt: Attempt, flow: int, *, trained: bool) -> Iterator[Slice]:
    """Yield an attempt's slice on each of its engines and the one of its grading; when one failed is not known."""
    if attempt.began_s is None or attempt.finished_s is None or attempt.graded_s is None or attempt.receipt is None:
        return
    name = f"{attempt.lease_id}/{attempt.number}"
    prompt = told.prompts.get(attempt.lease_id)
    facts = {
        "prompt": "" if prompt is None else content_preview(prompt.content),
        "weights": attempt.version,
        "became": attempt.fate if attempt.step is None else f"trained in step {attempt.step}",
    }
    engines = Counter(sample.engine or _UNNAMED for sample in attempt.receipt.samples)
    for number, (engine, count) in enumerate(engines.items()):
        begins: tuple[tuple[Literal["s", "t", "f"], int], ...] = (("s", flow),) if trained and number == 0 else ()
        yield Slice(
            process=engine,
            name=name,
            began_s=attempt.began_s,
            ended_s=attempt.finished_s,
            args={**facts, "samples": count},
            flows=begins,
        )
    yield Slice(
        process="graders",
        name=name,
        began_s=attempt.finished_s,
        ended_s=attempt.graded_s,
        args={"rewards": attempt.rewards},
        flows=(("t", flow),) if trained and attempt.graded_s > attempt.finished_s else (),
    )


def _step(step: Step, flows: Mapping[int, int]) -> Iterator[Slice]:
    waited = max(0.0, step.waits_from_s)
    lost = {} if step.counts else {"note": "a resume went back behind it"}
    yield Slice(process="trainer", name="wait", began_s=waited, ended_s=max(waited, step.train_from_s))
    yield Slice(
        process="trainer",
        name=f"step {step.number}",
        began_s=max(waited, step.train_from_s),
        ended_s=max(waited, step.trained_s),
        args={"batch": step.dispatch_id, "groups": len(step.attempts), **lost},
        flows=tuple(("f", flows[id(attempt)]) for attempt in step.attempts if attempt.graded_s is not None),
    )
    yield Slice(process="trainer", name="stage weights", began_s=max(waited, step.trained_s), ended_s=step.closed_s)

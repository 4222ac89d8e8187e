"""Fault plans: what goes wrong in a simulated run, where, when and for how long.

A fault has a text form for command lines and job files, ``KIND@METHOD[:WORKER]#CALL[+SECONDS]``, or with a moment
in place of a call, ``KIND@METHOD[:WORKER]@TIME[+SECONDS]``::

    hang@Engine.generate:rollout/1#3          the third group sent to rollout/1 never comes back
    slow_ledger@Ledger.append#7+2.5           the seventh append takes 2.5 s longer
    preemption@Engine:rollout/0@12.5+30       rollout/0 is taken away after 12.5 s, and back after 30 s more
    notice@Engine:rollout/0@12.5+30           it is told after 12.5 s that it will be taken away after 30 s more
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from msgspec import Meta

from protocols.messages import Message

FaultKind = Literal[
    "crash",
    "preemption",
    "notice",
    "hang",
    "slow",
    "lost_request",
    "lost_reply",
    "doubled_reply",
    "reordered_replies",
    "wrong_version",
    "partial_publish",
    "corrupt_payload",
    "slow_ledger",
]
"""What goes wrong.

``crash``: The worker dies when the call reaches it, and with it all that it runs. An engine, an executor or a
    grader is there again after ``lasts_s``, empty; a trainer is not, unless it is launched anew: nobody else knows its
    parameters.
``preemption``: The same at a moment, whether or not it is called.
``notice``: It is told at a moment that its place will be taken away after ``lasts_s``, and then that is. Who left it
    by then, launched anew elsewhere, loses nothing; who did not may be launched anew at once.
``hang``: The call reaches nobody and never returns.
``slow``: It takes ``lasts_s`` longer.
``lost_request``: It reaches nobody, and fails after ``lasts_s``.
``lost_reply``: It is carried out, and fails after ``lasts_s``.
``doubled_reply``: Its reply comes once more, as the answer to the next call of that method of that worker.
``reordered_replies``: It gets the reply of the next such call, and that call its reply, if there is one within
    ``lasts_s``.
``wrong_version``: Its reply names another weight version.
``partial_publish``: Loading weights fails half-way, and the engine serves none.
``corrupt_payload``: What is fetched is damaged.
``slow_ledger``: Writing takes ``lasts_s`` longer.
"""

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

AT_A_MOMENT: frozenset[FaultKind] = frozenset({"preemption", "notice"})
"""Kinds that need no call."""

HOSTED = ("Engine", "RolloutExecutor", "Grader", "Trainer")
"""Ports of workloads that a launcher hosts, so that calls and replies are messages that may go astray."""

_CALLED_BY_RUN = {
    "Engine": ("status", "generate", "abort", "live_requests", "load_weights", "resume"),
    "RolloutExecutor": ("generate", "abort"),
    "Grader": ("grade",),
    "Trainer": ("train_step", "outcome", "discard", "stage_weights"),
}
_ALL_HOSTED = tuple(f"{port}.{method}" for port, methods in _CALLED_BY_RUN.items() for method in methods)
_AT_A_TIME = ("Engine.generate", "RolloutExecutor.generate", "Grader.grade")
_VERSIONED = ("status", "generate", "load_weights")
_STORE = ("Payload.get", "Payload.put", "Payload.release")

METHODS: Mapping[FaultKind, tuple[str, ...]] = {
    "crash": _ALL_HOSTED,
    "preemption": HOSTED,
    "notice": HOSTED,
    "hang": (*_ALL_HOSTED, *_STORE, "PromptSource.draw", "Ledger.append"),
    "slow": (*_ALL_HOSTED, *_STORE, "PromptSource.draw"),
    "lost_request": _ALL_HOSTED,
    "lost_reply": _ALL_HOSTED,
    "doubled_reply": _ALL_HOSTED,
    "reordered_replies": _AT_A_TIME,
    "wrong_version": (*(f"Engine.{name}" for name in _VERSIONED), "Trainer.train_step", "Trainer.stage_weights"),
    "partial_publish": ("Engine.load_weights",),
    "corrupt_payload": ("Payload.get",),
    "slow_ledger": ("Ledger.append",),
}
"""Where each kind can happen. Prompts and ledger live beside the controller: no message of theirs goes astray."""


class Fault(Message, frozen=True, kw_only=True):
    """One thing that goes wrong, once.

    Attributes:
        kind: What.
        method: ``Port.method`` without the word Port; for what happens ``AT_A_MOMENT`` the port alone.
        worker: Of which worker; None: of any.
        call: At which of its calls, from 1; None where ``at_s`` says when.
        at_s: From which moment on, in seconds since the start.
        lasts_s: For how long.
    """

    kind: FaultKind
    method: str
    worker: str | None = None
    call: Annotated[int, Meta(ge=1)] | None = 1
    at_s: Annotated[float, Meta(ge=0)] | None = None
    lasts_s: Annotated[float, Meta(ge=0)] = 10.0

    def __str__(self) -> str:
        worker = "" if self.worker is None else f":{self.worker}"
        when = f"#{self.call}" if self.at_s is None else f"@{self.at_s:g}"
        return f"{self.kind}@{self.method}{worker}{when}+{self.lasts_s:g}"


class FaultPlan(Message, frozen=True, kw_only=True):
    """All that goes wrong in one run; faults do not know of each other."""

    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return ";".join(map(str, self.faults))


_BY_NAME: Mapping[str, FaultKind] = {str(kind): kind for kind in KINDS}

_FORM = re.compile(
    r"(?P<kind>\w+)@(?P<method>\w+(?:\.\w+)?)(?::(?P<worker>[\w/.-]+))?"
    r"(?:#(?P<call>\d+)|@(?P<at_s>[\d.]+))?(?:\+(?P<lasts_s>[\d.]+))?"
)


def parse_plan(text: str) -> FaultPlan:
    """Return the plan that a text describes, faults separated by semicolons.

    Raises:
        ValueError: A part is no fault, or can happen nowhere.
    """
    return FaultPlan(faults=tuple(_fault(part.strip()) for part in text.split(";") if part.strip()))


def _fault(text: str) -> Fault:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no fault: KIND@Port.method[:WORKER]#CALL[+SECONDS]")
    kind, method = match["kind"], match["method"]
    known = _BY_NAME.get(kind)
    if known is None:
        raise ValueError(f"{kind!r} is no kind of fault: {', '.join(KINDS)}")
    if method not in METHODS[known]:
        raise ValueError(f"{kind} cannot happen at {method!r}, only at {', '.join(METHODS[known])}")
    at_s = None if match["at_s"] is None else float(match["at_s"])
    return Fault(
        kind=known,
        method=method,
        worker=match["worker"],
        call=int(match["call"] or 1) if at_s is None else None,
        at_s=at_s,
        lasts_s=10.0 if match["lasts_s"] is None else float(match["lasts_s"]),
    )

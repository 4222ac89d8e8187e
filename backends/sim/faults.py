"""Plants the faults of a plan at the calls that cross ports, and keeps book of what happened."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from protocols import wire
from protocols.errors import Transient, WorkerLost
from protocols.faults import AT_A_MOMENT, Fault, FaultPlan
from protocols.inference import Generation, Segment
from protocols.messages import WeightVersion
from protocols.rollouts import GroupPayload
from protocols.simulation import FaultHit, Observed
from protocols.wire import P

Carry = Callable[[], Awaitable[Any]]

_STAGES = ("admit", "rollout", "reward", "batch", "train", "publish", "evaluate")
_OF_ABORT = ("abort", "live_requests", "release")
_IN_ORDER = frozenset({"Ledger.append"})
"""Methods whose calls are carried out in order: behind one that hangs, all hang."""

_OF_PUBLISH = ("keeper of", "probe on", "resume on")


def stage_of(task: str, method: str) -> str:
    """Return which part of a run makes a call, from the name of its task and the method that it calls.

    Returns:
        A stage, ``abort`` for what stops leased work, or ``run`` for what begins and ends the run.
    """
    name = method.rpartition(".")[2]
    kind, _, rest = task.partition(" ")
    if kind == "evaluation":
        return "abort" if name in _OF_ABORT else "evaluate"
    if kind in {"rollout", "reward"}:
        return "abort" if name in _OF_ABORT else kind
    if kind == "stage" and rest in _STAGES:
        return rest
    if task.startswith(_OF_PUBLISH):
        return "publish"
    if task == "batch intake":
        return "batch"
    return "abort" if name in _OF_ABORT[:2] else "run"


def current_stage(method: str) -> str:
    """Return which part of a run the current task belongs to."""
    return stage_of(_task_name(), method)


class _Armed:
    """A fault that has not happened yet, and the calls that it has let pass."""

    def __init__(self, index: int, fault: Fault) -> None:
        self.index = index
        self.fault = fault
        self._calls = 0

    def due(self, method: str, worker: str | None, now: float) -> bool:
        fault = self.fault
        if fault.method != method or (fault.worker is not None and fault.worker != worker):
            return False
        self._calls += 1
        return self._calls == fault.call if fault.at_s is None else now >= fault.at_s


@dataclass(eq=False)
class _Held:
    """A reply that waits for another one to change places with."""

    reply: Any
    changed: anyio.Event


class Faults:
    """The line that all calls go over.

    Args:
        plan: What goes wrong.
        observed: Told of every fault, and of every call where a trace is wanted.

    Attributes:
        crash: Ends a worker for some seconds; set by who can.
        lose_weights: Lets an engine serve nothing; set by who can.
    """

    crash: Callable[[str, float], object]
    lose_weights: Callable[[str], None]

    def __init__(self, plan: FaultPlan, observed: Observed) -> None:
        self._armed = [_Armed(index, fault) for index, fault in enumerate(plan.faults) if fault.kind not in AT_A_MOMENT]
        self._planned = bool(self._armed)
        self._observed = observed
        self._mute: set[str] = set()
        self._twice: dict[tuple[str, str | None], Any] = {}
        self._held: dict[tuple[str, str | None], _Held] = {}

    def wrap(self, port: type[P], implementation: P) -> P:
        """Return a port whose calls go over this line."""
        if not self._planned and self._observed.trace is None:
            return implementation
        name = port.__name__.removesuffix("Port")

        async def send(method: str, args: tuple[Any, ...]) -> Any:
            return await self.through(f"{name}.{method}", None, args, lambda: getattr(implementation, method)(*args))

        return wire.client(port, send)

    async def through(self, method: str, worker: str | None, args: tuple[Any, ...], carry: Carry) -> Any:
        """Carry one call, or let happen what the plan says.

        Args:
            method: ``Port.method``.
            worker: Who is called.
            args: Of the call, for the trace.
            carry: Carries it out.
        """
        if self._observed.trace is not None:
            return await self._traced(method, worker, args, carry)
        if not self._planned:
            return await carry()
        return await self._call(method, worker, carry)

    def tell(self, line: str) -> None:
        """Write a line into the trace, if one is wanted."""
        if self._observed.trace is not None:
            self._observed.trace.append(f"{anyio.current_time():12.6f}  {line}")

    def hit(self, index: int, fault: Fault, stage: str) -> None:
        """Write down that a fault happened."""
        self._observed.hits.append(FaultHit(at_s=anyio.current_time(), index=index, stage=stage))
        self.tell(f"!! {fault}{f' in {stage}' if stage else ''}")

    async def _traced(self, method: str, worker: str | None, args: tuple[Any, ...], carry: Carry) -> Any:
        called = f"{_task_name()}: {method}{f' of {worker}' if worker else ''}{_shown(args)}"
        self.tell(f"-> {called}")
        try:
            result = await self._call(method, worker, carry)
        except BaseException as exc:
            self.tell(f"<- {called} raises {type(exc).__name__}")
            raise
        self.tell(f"<- {called}")
        return result

    async def _call(self, method: str, worker: str | None, carry: Carry) -> Any:
        if method in self._mute:
            await anyio.sleep_forever()
        armed = self._due(method, worker)
        if armed is None:
            return await self._answer(method, worker, carry)
        self.hit(armed.index, armed.fault, current_stage(method))
        return await self._fail(armed.fault, method, worker, carry)

    def _due(self, method: str, worker: str | None) -> _Armed | None:
        now = anyio.current_time()
        due = [armed for armed in self._armed if armed.due(method, worker, now)]
        if not due:
            return None
        self._armed.remove(due[0])
        return due[0]

    async def _answer(self, method: str, worker: str | None, carry: Carry) -> Any:
        """Carry a call out, and let a reply that strayed come in place of its own."""
        reply = await carry()
        key = method, worker
        if key in self._twice:
            return self._twice.pop(key)
        if key in self._held:
            held = self._held.pop(key)
            held.reply, reply = reply, held.reply
            held.changed.set()
        return reply

    async def _fail(self, fault: Fault, method: str, worker: str | None, carry: Carry) -> Any:
        match fault.kind:
            case "crash":
                await checkpoint()
                self.crash(worker or "", fault.lasts_s)
                raise WorkerLost(worker=worker or "", cause="it crashed")
            case "hang":
                self._mute |= {method} & _IN_ORDER
                return await anyio.sleep_forever()
            case "slow":
                await anyio.sleep(fault.lasts_s)
                return await carry()
            case "lost_request":
                await anyio.sleep(fault.lasts_s)
                raise Transient(f"a request was lost: {method}")
            case "partial_publish":
                await checkpoint()
                self.lose_weights(worker or "")
                raise Transient("half of the weights came")
            case _:
                return await self._spoil(fault, method, worker, await carry())

    async def _spoil(self, fault: Fault, method: str, worker: str | None, reply: Any) -> Any:
        match fault.kind:
            case "lost_reply":
                await anyio.sleep(fault.lasts_s)
                raise Transient(f"a reply was lost: {method}")
            case "slow_ledger":  # written in the order of the calls, and durable later
                await anyio.sleep(fault.lasts_s)
                return reply
            case "doubled_reply":
                self._twice[method, worker] = reply
                return reply
            case "reordered_replies":
                return await self._exchanged((method, worker), reply, fault.lasts_s)
            case "wrong_version":
                return _of_another_version(reply)
            case _:
                return _damaged(reply)

    async def _exchanged(self, key: tuple[str, str | None], reply: Any, patience_s: float) -> Any:
        held = self._held[key] = _Held(reply, anyio.Event())
        try:
            with anyio.move_on_after(patience_s):
                await held.changed.wait()
        finally:
            if self._held.get(key) is held:
                del self._held[key]
        return held.reply


def _task_name() -> str:
    return anyio.get_current_task().name or ""


def _of_another_version(reply: Any) -> Any:
    match reply:
        case int():
            return WeightVersion(reply + 1)
        case Generation(completions=completions):
            false = (
                msgspec.structs.replace(one, segments=tuple(_false_segment(part) for part in one.segments))
                for one in completions
            )
            return Generation(completions=tuple(false))
        case _:
            return msgspec.structs.replace(reply, version=WeightVersion((reply.version or 0) + 1))


def _false_segment(segment: Segment) -> Segment:
    return Segment(version=WeightVersion(segment.version + 1000), count=segment.count)


def _damaged(reply: Any) -> Any:
    return msgspec.structs.replace(reply, samples=()) if isinstance(reply, GroupPayload) else {}


_NAMED_BY = ("lease_id", "attempt", "dispatch_id", "version", "owner")


def _shown(args: tuple[Any, ...]) -> str:
    """Return what the arguments of a call are about."""
    return "".join(f" {_subject(arg)}" for arg in args)


def _subject(arg: Any) -> str:
    if isinstance(arg, str):
        return arg
    if isinstance(arg, tuple):
        return ",".join(type(one).__struct_config__.tag or "" for one in arg)
    if (samples := getattr(arg, "samples", None)) and hasattr(samples[0], "request_id"):
        return samples[0].request_id
    return "/".join(str(value) for name in _NAMED_BY if (value := getattr(arg, name, None)) is not None)

"""A trainer without parameters that keeps every rule of one."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import msgspec
from anyio.lowlevel import checkpoint

from backends.sim.clock import spend
from protocols.backend import PayloadPort
from protocols.errors import InvariantError, PayloadLost, UserError, WorkerLost
from protocols.inference import WeightsManifest
from protocols.messages import DispatchId, Message, PayloadRef, RegistrationKey, WeightVersion
from protocols.rollouts import GroupPayload
from protocols.training import (
    AccumulateReport,
    BatchLease,
    CheckpointRequest,
    GroupRow,
    StageRequest,
    StepReport,
    TrainerPort,
)

REGISTRATION = RegistrationKey()


class _Saved(Message, frozen=True, kw_only=True):
    version: WeightVersion
    last: StepReport | None


class ScriptedTrainer:
    """Counts versions; checks batches, dispatches and gradient windows as a real trainer does.

    Args:
        payloads: Where the groups' payloads are read and weights are staged; None reads and stages nothing.
        step_s: Seconds of a whole step, or of the step of a batch; ``math.inf`` hangs. Gradients take all of it,
            ``apply`` ``apply_s``.
        apply_s: Seconds of ``apply``.
        registration: Whose parameters it holds.

    Attributes:
        version: Steps applied.
        steps: The batch of every applied step, in order.
        discarded: How often ``discard`` threw gradients away.
    """

    def __init__(
        self,
        payloads: PayloadPort | None = None,
        *,
        step_s: float | Callable[[BatchLease], float] = 1.0,
        apply_s: float = 0.0,
        registration: RegistrationKey = REGISTRATION,
    ) -> None:
        self._payloads = payloads
        self._step_s = step_s
        self._apply_s = apply_s
        self._registration = registration
        self._window: BatchLease | None = None
        self._complete = False
        self._last: StepReport | None = None
        self._calling: str | None = None
        self.version = WeightVersion(0)
        self.steps: list[BatchLease] = []
        self.discarded = 0

    async def accumulate(self, batch: BatchLease) -> AccumulateReport:
        """Check the batch, read its payloads, open the window."""
        with self._alone("accumulate"):
            await checkpoint()
            self._check(batch)
            self._window, self._complete = batch, False
            if self._payloads is not None:
                for group in batch.groups:
                    await _check_payload(group, self._payloads)
            await spend(self._step_s(batch) if callable(self._step_s) else self._step_s)
            self._complete = True
            return AccumulateReport(dispatch_id=batch.dispatch_id, metrics=self._metrics())

    async def apply(self, dispatch_id: DispatchId) -> StepReport:
        """Add one to the version, whole or not at all."""
        with self._alone("apply"):
            await checkpoint()
            batch = self._window
            if batch is None or batch.dispatch_id != dispatch_id or not self._complete:
                raise InvariantError(f"apply of {dispatch_id}: it is not accumulated")
            await spend(self._apply_s)
            metrics = self._metrics()
            self.version = WeightVersion(self.version + 1)
            self.steps.append(batch)
            self._window, self._complete = None, False
            consumed = tuple(group.lease_id for group in batch.groups)
            self._last = StepReport(
                dispatch_id=dispatch_id, version=self.version, mutated="yes", consumed=consumed, metrics=metrics
            )
            return self._last

    async def discard(self) -> None:
        """Close the window."""
        with self._alone("discard"):
            await checkpoint()
            self.discarded += self._window is not None
            self._window, self._complete = None, False

    async def train_step(self, batch: BatchLease) -> StepReport:
        """Accumulate and apply, unless the last step was this one."""
        await checkpoint()
        if self._last is not None and self._last.dispatch_id == batch.dispatch_id:
            return self._last
        await self.accumulate(batch)
        return await self.apply(batch.dispatch_id)

    async def outcome(self, dispatch_id: DispatchId) -> StepReport | None:
        """Return the last report if it is this dispatch's."""
        await checkpoint()
        return self._last if self._last is not None and self._last.dispatch_id == dispatch_id else None

    async def stage_weights(self, request: StageRequest) -> WeightsManifest:
        """Put one number, the version, as the weights."""
        with self._alone("stage_weights"):
            await checkpoint()
            ref = PayloadRef(owner=request.owner, key=f"weights/{self.version}")
            if self._payloads is not None:
                await self._payloads.put(ref, {"version": float(self.version)})
            return WeightsManifest(version=self.version, payload=ref, tensors=1, size_bytes=8)

    async def save(self, request: CheckpointRequest) -> WeightVersion:
        """Write the version and the last report."""
        with self._alone("save"):
            await checkpoint()
            _write(request.path, _Saved(version=self.version, last=self._last))
            return self.version

    async def load(self, request: CheckpointRequest) -> WeightVersion:
        """Continue from a saved version; an open window is gone."""
        with self._alone("load"):
            await checkpoint()
            saved = _read(request.path)
            self.version, self._last = saved.version, saved.last
            self._window, self._complete = None, False
            return self.version

    def _check(self, batch: BatchLease) -> None:
        if self._window is not None:
            raise InvariantError(f"{self._window.dispatch_id} is accumulated: apply or discard it first")
        if batch.registration != self._registration:
            raise InvariantError(f"{batch.dispatch_id} is for {batch.registration}, this is {self._registration}")
        if batch.version != self.version:
            raise InvariantError(f"{batch.dispatch_id} starts from version {batch.version}, this is {self.version}")
        if repeated := next(_repeats(batch), None):
            raise InvariantError(f"{batch.dispatch_id} holds {repeated} twice")

    def _metrics(self) -> dict[str, float]:
        return {"loss": 1.0 / (1 + self.version), "grad_norm": 1.0}

    @contextmanager
    def _alone(self, method: str) -> Generator[None]:
        if self._calling is not None:
            raise InvariantError(f"{method} was called during {self._calling}")
        self._calling = method
        try:
            yield
        finally:
            self._calling = None


def _repeats(batch: BatchLease) -> Iterator[str]:
    """Give leases, payloads and samples that stand in the batch more than once."""
    leases = (group.lease_id for group in batch.groups)
    payloads = (f"payload {group.payload.owner}{group.payload.key}" for group in batch.groups)
    samples = (f"{group.lease_id} sample {row.sample}" for group in batch.groups for row in group.samples)
    seen: set[str] = set()
    for one in chain(leases, payloads, samples):
        if one in seen:
            yield one
        seen.add(one)


async def _check_payload(group: GroupRow, payloads: PayloadPort) -> None:
    owner, needed = group.payload.owner, max((row.sample for row in group.samples), default=-1)
    try:
        payload = await payloads.get(group.payload)
    except WorkerLost as exc:
        raise PayloadLost(owner=owner, cause=exc.cause) from exc
    if not isinstance(payload, GroupPayload) or len(payload.samples) <= needed:
        raise PayloadLost(owner=owner, cause="it is damaged")


def _write(folder: str, saved: _Saved) -> None:
    (Path(folder) / "scripted.json").write_bytes(msgspec.json.encode(saved))


def _read(folder: str) -> _Saved:
    try:
        return msgspec.json.decode((Path(folder) / "scripted.json").read_bytes(), type=_Saved)
    except (OSError, msgspec.MsgspecError) as exc:
        raise UserError(f"{folder} holds no scripted trainer: {exc}") from exc


_: type[TrainerPort] = ScriptedTrainer

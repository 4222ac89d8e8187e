"""Ports that take no time: what is left of a run over them is the controller's own cost."""

from collections.abc import Mapping

from anyio.lowlevel import checkpoint

from protocols.backend import Bulk, PayloadPort
from protocols.grading import Grade, GradeReport, GradeRequest, GraderPort
from protocols.inference import (
    AbortReport,
    EnginePort,
    EngineStatus,
    GenerateRequest,
    Generation,
    InferenceControllerPort,
    SampleRequest,
    Sampling,
    Segment,
    WeightsManifest,
)
from protocols.ledger import LedgerEvent, LedgerPort
from protocols.messages import DispatchId, PayloadRef, WeightVersion, WorkerId
from protocols.prompts import Prompt, PromptSourcePort, SourceState, TextPrompt
from protocols.rollouts import GroupReceipt, RolloutExecutorPort, RolloutLease, SampleReceipt
from protocols.training import (
    AccumulateReport,
    BatchLease,
    CheckpointRequest,
    StageRequest,
    StepReport,
    TrainerPort,
)

GROUP = 8
_TOKENS = 4


class InstantPrompts:
    """One prompt for ever, with its number."""

    def __init__(self) -> None:
        self._position = 0
        self._content = TextPrompt(text="p")

    async def draw(self) -> Prompt:
        """Return the next one."""
        await checkpoint()
        self._position += 1
        return Prompt(position=self._position - 1, content=self._content)

    async def state(self) -> SourceState:
        """Return its position."""
        await checkpoint()
        return SourceState(position=self._position, seed=0)

    async def restore(self, state: SourceState) -> None:
        """Go on from there."""
        await checkpoint()
        self._position = state.position

    async def fingerprint(self) -> str:
        """Return its name."""
        await checkpoint()
        return "instant"

    async def epoch_length(self) -> None:
        """Return that there is no end."""
        await checkpoint()


class InstantEngine:
    """Has done what it is asked for."""

    def __init__(self) -> None:
        self._version: WeightVersion | None = None

    async def status(self) -> EngineStatus:
        """Return what is served."""
        await checkpoint()
        return EngineStatus(version=self._version, live=0, context=8)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Return no completion: the executor below makes receipts by itself."""
        del request
        await checkpoint()
        return Generation(completions=())

    async def abort(self, prefix: str) -> frozenset[str]:
        """Return that nothing ran."""
        del prefix
        await checkpoint()
        return frozenset()

    async def live_requests(self) -> frozenset[str]:
        """Return that nothing runs."""
        await checkpoint()
        return frozenset()

    async def load_weights(self, manifest: WeightsManifest) -> WeightVersion:
        """Serve them."""
        await checkpoint()
        self._version = manifest.version
        return manifest.version

    async def pause(self) -> None:
        """Do nothing."""
        await checkpoint()

    async def resume(self) -> None:
        """Do nothing."""
        await checkpoint()


class InstantExecutor:
    """Asks the engines once for a group and makes a receipt of nothing; the samples' part of it is made once."""

    def __init__(self, inference: InferenceControllerPort) -> None:
        self._inference = inference
        self._version = WeightVersion(-1)
        self._samples: tuple[SampleReceipt, ...] = ()
        self._asked = (SampleRequest(request_id="r", stream="s"),) * GROUP
        self._sampling = Sampling(max_tokens=_TOKENS)

    async def generate(self, lease: RolloutLease) -> GroupReceipt:
        """Play a group."""
        request = GenerateRequest(prompt_ids=(0,), samples=self._asked, sampling=self._sampling)
        await self._inference.generate(request)
        return GroupReceipt(
            lease_id=lease.lease_id,
            attempt=lease.attempt,
            prompt_tokens=1,
            payload=PayloadRef(owner=lease.prefix, key="group"),
            samples=self._samples,
        )

    async def abort(self, prefix: str) -> AbortReport:
        """Return that nothing ran."""
        del prefix
        await checkpoint()
        return AbortReport()

    def serve(self, version: WeightVersion) -> None:
        """Stamp tokens with another version from now on."""
        segments = (Segment(version=version, count=_TOKENS),)
        self._samples = (SampleReceipt(tokens=_TOKENS, segments=segments, finish="stop", preview=""),) * GROUP


class InstantGrader:
    """Gives everybody the same grades, half of them 1."""

    def __init__(self) -> None:
        self._grades = tuple(Grade(reward=float(sample % 2)) for sample in range(GROUP))

    async def grade(self, request: GradeRequest) -> GradeReport:
        """Grade."""
        await checkpoint()
        return GradeReport(lease_id=request.lease_id, attempt=request.attempt, grades=self._grades)


class InstantTrainer:
    """Counts steps."""

    def __init__(self, executor: InstantExecutor) -> None:
        self._executor = executor
        self._version = WeightVersion(0)

    async def train_step(self, batch: BatchLease) -> StepReport:
        """Step."""
        await checkpoint()
        self._version = WeightVersion(self._version + 1)
        return StepReport(
            dispatch_id=batch.dispatch_id,
            version=self._version,
            mutated="yes",
            consumed=tuple(group.lease_id for group in batch.groups),
            metrics={},
        )

    async def stage_weights(self, request: StageRequest) -> WeightsManifest:
        """Stage nothing."""
        await checkpoint()
        self._executor.serve(self._version)
        return WeightsManifest(
            version=self._version, payload=PayloadRef(owner=request.owner, key="w"), tensors=1, size_bytes=1
        )

    async def accumulate(self, batch: BatchLease) -> AccumulateReport:
        """Accumulate nothing."""
        await checkpoint()
        return AccumulateReport(dispatch_id=batch.dispatch_id, metrics={})

    async def apply(self, dispatch_id: DispatchId) -> StepReport:
        """Never called: a step is one call."""
        raise NotImplementedError(dispatch_id)

    async def discard(self) -> None:
        """Do nothing."""
        await checkpoint()

    async def outcome(self, dispatch_id: DispatchId) -> StepReport | None:
        """Return that it did not happen."""
        del dispatch_id
        await checkpoint()
        return None

    async def snapshot(self) -> WeightVersion:
        """Copy nothing."""
        await checkpoint()
        return self._version

    async def save(self, request: CheckpointRequest) -> WeightVersion:
        """Write nothing."""
        del request
        await checkpoint()
        return self._version

    async def load(self, request: CheckpointRequest) -> WeightVersion:
        """Read nothing."""
        del request
        await checkpoint()
        return self._version


class InstantPayloads:
    """Stores nothing."""

    async def put(self, ref: PayloadRef, value: Bulk) -> None:
        """Forget it."""
        del ref, value
        await checkpoint()

    async def get(self, ref: PayloadRef) -> Mapping[str, float]:
        """Return nothing."""
        del ref
        await checkpoint()
        return {}

    async def release(self, owner: str) -> None:
        """Do nothing."""
        del owner
        await checkpoint()

    async def owners(self) -> frozenset[str]:
        """Return that nobody holds anything."""
        await checkpoint()
        return frozenset()

    async def spool(self, ref: PayloadRef, path: str) -> None:
        """Write nothing."""
        del ref, path
        await checkpoint()

    async def unspool(self, ref: PayloadRef, path: str) -> None:
        """Read nothing."""
        del ref, path
        await checkpoint()


class ForgetfulLedger:
    """Takes every event and keeps none: what grows over a long run is the controller's."""

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        """Forget them."""
        del events
        await checkpoint()

    async def replay(self, after: int) -> tuple[LedgerEvent, ...]:
        """Return that nothing was written."""
        del after
        await checkpoint()
        return ()

    async def lost(self) -> int:
        """Return that nothing was lost."""
        await checkpoint()
        return 0

    async def compact(self, events: tuple[LedgerEvent, ...]) -> None:
        """Forget them."""
        del events
        await checkpoint()


def instant_engines(count: int) -> dict[WorkerId, EnginePort]:
    """Return so many engines."""
    return {WorkerId(f"rollout/{number}"): InstantEngine() for number in range(count)}


_PROOF: tuple[
    type[PromptSourcePort],
    type[EnginePort],
    type[RolloutExecutorPort],
    type[GraderPort],
    type[TrainerPort],
    type[PayloadPort],
    type[LedgerPort],
] = (
    InstantPrompts,
    InstantEngine,
    InstantExecutor,
    InstantGrader,
    InstantTrainer,
    InstantPayloads,
    ForgetfulLedger,
)

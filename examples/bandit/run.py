"""A run made by hand: a policy of ten numbers learns which of ten arms pays, without torch, model or file.

Every port is a plain class below. The controller is the real one: leases, admission, batches, publishing.

    python examples/bandit/run.py
"""

import math
import random
from collections.abc import Mapping
from typing import Any, cast

import anyio
from anyio.lowlevel import checkpoint

from backends.inproc import Config
from backends.inproc import open as open_inproc
from backends.ledgers.memory import MemoryLedger
from conductor import Conductor, RunConfig, RunResult, Workloads
from protocols.backend import PayloadPort
from protocols.grading import Grade, GradeReport, GradeRequest
from protocols.inference import (
    AbortReport,
    EngineStatus,
    GenerateRequest,
    Generation,
    PublishReceipt,
    Readiness,
    Sampling,
    Segment,
    WeightsManifest,
)
from protocols.messages import DispatchId, PayloadRef, WeightVersion, WorkerId, stream_name
from protocols.prompts import Prompt, SourceState, TextPrompt
from protocols.rollouts import GroupPayload, GroupReceipt, RolloutLease, SamplePayload, SampleReceipt
from protocols.sections import Site
from protocols.training import AccumulateReport, BatchLease, CheckpointRequest, StageRequest, StepReport

ARMS = 10
PAYING = 7
ENGINE = WorkerId("engine/0")


def probabilities(logits: list[float]) -> list[float]:
    """Return the softmax of ``logits``."""
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


class Questions:
    """Asks the same question for ever (``PromptSourcePort``)."""

    def __init__(self) -> None:
        self._position = 0

    async def draw(self) -> Prompt | None:
        await checkpoint()
        self._position += 1
        return Prompt(position=self._position - 1, content=TextPrompt(text="which arm?"))

    async def state(self) -> SourceState:
        await checkpoint()
        return SourceState(position=self._position, seed=0)

    async def restore(self, state: SourceState) -> None:
        await checkpoint()
        self._position = state.position

    async def fingerprint(self) -> str:
        await checkpoint()
        return "bandit"

    async def epoch_length(self) -> int | None:
        await checkpoint()
        return None


class Arms:
    """Serves the published policy (``InferenceControllerPort``)."""

    def __init__(self, payloads: PayloadPort) -> None:
        self._payloads = payloads
        self.version: WeightVersion | None = None
        self.policy: list[float] = []

    async def endpoint(self) -> str:
        await checkpoint()
        return "arms"

    async def prepare_rollout(self) -> Readiness:
        await checkpoint()
        return Readiness(members=frozenset({ENGINE}))

    async def generate(self, request: GenerateRequest) -> Generation:
        raise NotImplementedError("the executor below pulls the arms itself")

    async def abort(self, prefix: str) -> AbortReport:  # a pull takes no time: nothing is ever live
        await checkpoint()
        return AbortReport()

    async def live_requests(self) -> frozenset[str]:
        await checkpoint()
        return frozenset()

    async def publish(self, manifest: WeightsManifest) -> PublishReceipt:
        weights = cast("Mapping[str, Any]", await self._payloads.get(manifest.payload))
        self.policy, self.version = weights["logits"], manifest.version
        return PublishReceipt(version=manifest.version, confirmed=frozenset({ENGINE}))

    async def versions(self) -> dict[WorkerId, WeightVersion | None]:
        await checkpoint()
        return {ENGINE: self.version}

    async def statuses(self) -> dict[WorkerId, EngineStatus | None]:
        await checkpoint()
        return {ENGINE: EngineStatus(version=self.version, live=0, context=1)}

    async def pause(self) -> None:
        await checkpoint()

    async def resume(self) -> None:
        await checkpoint()


class Pulls:
    """Plays a lease: pulls one arm for each sample (``RolloutExecutorPort``)."""

    def __init__(self, arms: Arms, payloads: PayloadPort) -> None:
        self._arms = arms
        self._payloads = payloads

    async def generate(self, lease: RolloutLease) -> GroupReceipt:
        chances, version = probabilities(self._arms.policy), self._arms.version or WeightVersion(0)
        pulls: list[SamplePayload] = []
        for sample in range(lease.group_size):
            stream = random.Random(stream_name(lease.seed, lease.prompt.position, sample))
            arm = stream.choices(range(ARMS), chances)[0]
            pulls.append(SamplePayload(token_ids=(arm,), logprobs=(math.log(chances[arm]),), text=str(arm)))
        ref = PayloadRef(owner=lease.prefix, key="group")
        group = GroupPayload(prompt_ids=(0,), prompt_text="which arm?", temperature=1.0, samples=tuple(pulls))
        await self._payloads.put(ref, group)
        segments = (Segment(version=version, count=1),)
        receipts = [SampleReceipt(tokens=1, segments=segments, finish="stop", preview=pull.text) for pull in pulls]
        return GroupReceipt(
            lease_id=lease.lease_id, attempt=lease.attempt, prompt_tokens=1, payload=ref, samples=tuple(receipts)
        )

    async def abort(self, prefix: str) -> AbortReport:
        await self._payloads.release(prefix)
        return AbortReport()


class Payout:
    """Pays 1 for the right arm (``GraderPort``)."""

    def __init__(self, payloads: PayloadPort) -> None:
        self._payloads = payloads

    async def grade(self, request: GradeRequest) -> GradeReport:
        group = cast("GroupPayload", await self._payloads.get(request.payload))
        grades = tuple(Grade(reward=float(group.samples[index].text == str(PAYING))) for index in request.samples)
        return GradeReport(lease_id=request.lease_id, attempt=request.attempt, grades=grades)


class Gradient:
    """Climbs the expected reward (``TrainerPort``)."""

    def __init__(self, payloads: PayloadPort, lr: float) -> None:
        self._payloads = payloads
        self._lr = lr
        self._logits = [0.0] * ARMS
        self._gradient = [0.0] * ARMS
        self._batch: BatchLease | None = None
        self._last: StepReport | None = None
        self._version = WeightVersion(0)
        self._copy: tuple[WeightVersion, list[float]] | None = None

    async def accumulate(self, batch: BatchLease) -> AccumulateReport:
        chances = probabilities(self._logits)
        for group in batch.groups:
            pulls = cast("GroupPayload", await self._payloads.get(group.payload)).samples
            for row in group.samples:
                scale = row.weight * row.advantage / (len(batch.groups) * len(group.samples))
                for arm in range(ARMS):
                    self._gradient[arm] += scale * ((pulls[row.sample].token_ids[0] == arm) - chances[arm])
        self._batch = batch
        return AccumulateReport(dispatch_id=batch.dispatch_id, metrics={})

    async def apply(self, dispatch_id: DispatchId) -> StepReport:
        await checkpoint()
        assert self._batch is not None
        self._logits = [logit + self._lr * slope for logit, slope in zip(self._logits, self._gradient, strict=True)]
        self._version = WeightVersion(self._version + 1)
        self._last = StepReport(
            dispatch_id=dispatch_id,
            version=self._version,
            mutated="yes",
            consumed=tuple(group.lease_id for group in self._batch.groups),
            metrics={"grad_norm": math.hypot(*self._gradient)},
        )
        await self.discard()
        return self._last

    async def discard(self) -> None:
        await checkpoint()
        self._gradient, self._batch = [0.0] * ARMS, None

    async def train_step(self, batch: BatchLease) -> StepReport:
        await self.accumulate(batch)
        return await self.apply(batch.dispatch_id)

    async def outcome(self, dispatch_id: DispatchId) -> StepReport | None:
        await checkpoint()
        return self._last if self._last is not None and self._last.dispatch_id == dispatch_id else None

    async def stage_weights(self, request: StageRequest) -> WeightsManifest:
        ref = PayloadRef(owner=request.owner, key="logits")
        await self._payloads.put(ref, {"logits": list(self._logits)})
        return WeightsManifest(version=self._version, payload=ref, tensors=1, size_bytes=8 * ARMS)

    async def snapshot(self) -> WeightVersion:
        await checkpoint()
        self._copy = (self._version, list(self._logits))
        return self._version

    async def save(self, request: CheckpointRequest) -> WeightVersion:
        version, logits = self._copy or (self._version, self._logits)
        await anyio.Path(request.path, "logits.txt").write_text("\n".join(map(str, logits)))
        self._copy = None
        return version

    async def load(self, request: CheckpointRequest) -> WeightVersion:
        lines = (await anyio.Path(request.path, "logits.txt").read_text()).splitlines()
        self._logits = [float(line) for line in lines]
        return self._version


async def train(steps: int = 40) -> RunResult:
    """Run the bandit for ``steps`` steps of 8 groups of 8 pulls, generating up to one version ahead."""
    cfg = RunConfig(
        name="bandit", steps=steps, batch_groups=8, group_size=8, max_age=1, sampling=Sampling(max_tokens=1)
    )
    async with open_inproc(Config(), Site(job_dir=".")) as backend:
        arms = Arms(backend.payloads)
        workloads = Workloads(
            prompts=Questions(),
            executor=Pulls(arms, backend.payloads),
            inference=arms,
            grader=Payout(backend.payloads),
            trainer=Gradient(backend.payloads, lr=2.0),
            ledger=MemoryLedger(),
            trackers=(),
        )
        return await Conductor.run(cfg, backend=backend, workloads=workloads)


async def main() -> None:
    """Train, and say what came of it."""
    result = await train()
    print(f"reward {result.reward_first:.3f} -> {result.reward_last:.3f} in {result.steps} steps; {result.accounts}")


if __name__ == "__main__":
    anyio.run(main)

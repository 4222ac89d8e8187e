"""A run as one writes it on Ray by hand: rollout manager and train group are actors, references go through the driver.

The engine, the trainer, the episodes, the rewards and the prompts are the project's, opened as its plan says; what is
not here is the controller: leases, a record, bounds, failover, evaluation.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import msgspec

from backends._hosting import opened
from backends.engines.pool import EnginePool, open_pool
from backends.inproc.payloads import InprocPayloads
from conductor.algorithms.table import ALGORITHMS
from conductor.config import RunConfig
from protocols.adapters import Host, resolve
from protocols.backend import WorkloadSpec
from protocols.grading import Grade, GradeRequest
from protocols.inference import WeightsManifest
from protocols.messages import DispatchId, LeaseId, Message, PayloadRef, WeightVersion, WorkerId, attempt_prefix
from protocols.prompts import Prompt
from protocols.rollouts import GroupPayload, RolloutLease
from protocols.training import BatchLease, GroupRow, SampleRow, StageRequest

ENGINE = WorkerId("rollout/0")


class Rollouts(Message, frozen=True, kw_only=True):
    """What a step is trained on: for each group its lease, its payload, its rewards."""

    leases: tuple[str, ...]
    payloads: tuple[GroupPayload, ...]
    rewards: tuple[tuple[float, ...], ...]


class _Hosting:
    """An actor that holds its workloads open until it is told to close."""

    def __init__(self) -> None:
        self._payloads = InprocPayloads()
        self._open = anyio.Event()
        self._close = anyio.Event()

    async def ready(self) -> None:
        """Wait until the workloads are open."""
        await self._open.wait()

    async def close(self) -> None:
        """Let them close."""
        self._close.set()

    @asynccontextmanager
    async def _held(self) -> AsyncGenerator[AsyncExitStack]:
        async with AsyncExitStack() as stack:
            yield stack
            self._open.set()
            await self._close.wait()


class RolloutManager(_Hosting):
    """Draws prompts, has them answered and graded.

    Args:
        cfg: The job.
        specs: Of its workloads, by section.
    """

    def __init__(self, cfg: RunConfig, specs: dict[str, WorkloadSpec]) -> None:
        super().__init__()
        self._cfg = cfg
        self._specs = specs
        self._pool: EnginePool
        self._drawn = 0

    async def serve(self) -> None:
        """Hold the workloads open."""
        async with self._held() as stack:
            host = Host(site=self._specs["engine"].site, payloads=self._payloads)
            engine = await stack.enter_async_context(opened(self._specs["engine"], host))
            self._pool = await stack.enter_async_context(open_pool({ENGINE: engine}))
            beside = Host(site=host.site, payloads=self._payloads, inference=self._pool)
            self._episode = await stack.enter_async_context(opened(self._specs["episode"], beside))
            self._grader = await stack.enter_async_context(opened(self._specs["reward"], beside))
            section = self._cfg.prompts
            assert section is not None
            adapter = resolve("prompts", section.kind, host.site.job_dir)
            options = msgspec.convert(section.options, adapter.Config)
            self._prompts = await stack.enter_async_context(adapter.open(options, host))

    async def load(self, version: int, weights: dict[str, Any]) -> None:
        """Let the engine serve weights."""
        import torch  # noqa: PLC0415 - the worker's

        ref = PayloadRef(owner=f"weights/{version}/", key="weights")
        await self._payloads.put(ref, {name: torch.from_numpy(one) for name, one in weights.items()})
        manifest = WeightsManifest(version=WeightVersion(version), payload=ref, tensors=len(weights), size_bytes=0)
        await self._pool.publish(manifest)
        await self._payloads.release(f"weights/{version - 1}/")

    async def rollouts(self) -> Rollouts:
        """Return a batch."""
        groups: dict[int, tuple[str, GroupPayload, tuple[float, ...]]] = {}

        async def play(number: int, prompt: Prompt) -> None:
            groups[number] = await self._play(prompt)

        async with anyio.create_task_group() as tasks:
            for number in range(self._cfg.batch_groups):
                prompt = await self._prompts.draw()
                assert prompt is not None
                tasks.start_soon(play, number, prompt)
        ordered = [groups[number] for number in range(self._cfg.batch_groups)]
        leases, payloads, rewards = zip(*ordered, strict=True)
        return Rollouts(leases=leases, payloads=payloads, rewards=rewards)

    async def _play(self, prompt: Prompt) -> tuple[str, GroupPayload, tuple[float, ...]]:
        cfg = self._cfg
        lease = RolloutLease(
            lease_id=LeaseId(f"L{prompt.position}"), attempt=0, registration=cfg.registration, prompt=prompt,
            group_size=cfg.group_size, sampling=cfg.sampling, seed=cfg.seed,
        )  # fmt: skip
        receipt = await self._episode.generate(lease)
        request = GradeRequest(
            lease_id=lease.lease_id, attempt=0, prompt=prompt, payload=receipt.payload,
            samples=tuple(range(cfg.group_size)),
        )  # fmt: skip
        report = await self._grader.grade(request)
        payload = await self._payloads.get(receipt.payload)
        assert isinstance(payload, GroupPayload)
        await self._payloads.release(lease.prefix)
        rewards = tuple(grade.reward if isinstance(grade, Grade) else 0.0 for grade in report.grades)
        return lease.lease_id, payload, rewards


class TrainGroup(_Hosting):
    """One rank, which trains on what it is given.

    Args:
        cfg: The job.
        spec: Of the trainer.
    """

    def __init__(self, cfg: RunConfig, spec: WorkloadSpec) -> None:
        super().__init__()
        self._cfg = cfg
        self._spec = spec
        self._version = WeightVersion(0)

    async def serve(self) -> None:
        """Hold the trainer open."""
        async with self._held() as stack:
            host = Host(site=self._spec.site, payloads=self._payloads)
            self._trainer = await stack.enter_async_context(opened(self._spec, host))

    async def step(self, batch: Rollouts) -> int:
        """Train; returns the new version."""
        advantages = ALGORITHMS[self._cfg.algorithm].advantages(batch.rewards)
        rows = [await self._row(batch, number, advantages[number]) for number in range(len(batch.leases))]
        lease = BatchLease(
            dispatch_id=DispatchId(f"D{self._version}"),
            registration=self._cfg.registration,
            version=self._version,
            groups=tuple(rows),
        )
        self._version = (await self._trainer.train_step(lease)).version
        await self._payloads.release("")
        return self._version

    async def _row(self, batch: Rollouts, number: int, advantages: Sequence[float]) -> GroupRow:
        prefix = attempt_prefix(self._cfg.registration, LeaseId(batch.leases[number]), 0)
        ref = PayloadRef(owner=prefix, key="group")
        await self._payloads.put(ref, batch.payloads[number])
        samples = tuple(
            SampleRow(sample=index, advantage=advantage, reward=reward)
            for index, (advantage, reward) in enumerate(zip(advantages, batch.rewards[number], strict=True))
        )
        return GroupRow(lease_id=LeaseId(batch.leases[number]), attempt=0, payload=ref, samples=samples)

    async def weights(self) -> dict[str, Any]:
        """Return the weights as arrays, which Ray neither copies nor pickles."""
        manifest = await self._trainer.stage_weights(StageRequest(owner="weights/", exclusive=False))
        held = await self._payloads.get(manifest.payload)
        assert isinstance(held, dict)
        return {name: one.numpy() for name, one in held.items()}

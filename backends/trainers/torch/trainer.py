"""The trainer's port: messages in and out, all work in a thread."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
from torch import Tensor

from backends.models.loading import named_weights
from backends.models.opening import load_tokenizer
from backends.models.tokenizers import Tokenizer
from backends.trainers.torch import Config, checkpoint, node_check
from backends.trainers.torch.compute import LONGEST_PASS_S, Compute
from backends.trainers.torch.layout import Layout
from backends.trainers.torch.learner import Learner
from backends.trainers.torch.models import load_models
from backends.trainers.torch.probe import probe_of
from backends.trainers.torch.ranks import Ranks
from backends.trainers.torch.replicated import Replicated
from backends.trainers.torch.sharded import Sharded
from protocols.adapters import Host
from protocols.aio import bounded_shield, owned
from protocols.backend import Bulk, PayloadPort
from protocols.errors import ConductorError, PayloadLost, WorkerLost
from protocols.inference import Probe, WeightsManifest
from protocols.messages import DispatchId, PayloadRef, WeightVersion
from protocols.training import (
    AccumulateReport,
    BatchLease,
    CheckpointRequest,
    CheckReport,
    CheckRequest,
    JoinRequest,
    RankPort,
    StageRequest,
    Standing,
    StepReport,
)


class TorchTrainer:
    """A ``Learner`` behind the port.

    The registration of the first batch is the trainer's tenant; batches of any other are refused.

    A step without a single trained token, or with advantages of 0 only, is a step all the same: its
    gradients are 0, and parameters move by AdamW's momentum and weight decay alone. Gradients that are
    not finite change nothing: ``mutated`` is ``no``, the version stays, the batch counts as consumed, and the
    metric ``train/skipped`` is 1.

    Only this process remembers a step: after ``load``, ``outcome`` knows none.
    """

    def __init__(self, learner: Learner, tokenizer: Tokenizer, *, compute: Compute, payloads: PayloadPort) -> None:
        self._learner = learner
        self._ranks = learner.layout.ranks
        self._parts = learner.layout.parts
        self._tokenizer = tokenizer
        self._compute = compute
        self._payloads = payloads
        self._writing = Compute(None)
        self._snapshot: checkpoint.State | None = None

    async def accumulate(self, batch: BatchLease) -> AccumulateReport:
        """Check, fetch, and compute gradients; when it fails or is cancelled, they are discarded already."""
        async with self._among_others():
            await self._compute.run(self._learner.check, batch)
            payloads = await self._fetch(batch)
            return await self._compute.run(self._learner.accumulate, batch, payloads)

    async def apply(self, dispatch_id: DispatchId) -> StepReport:
        """Step; a cancellation that comes while it is under way does not stop it."""
        async with self._among_others():
            return await self._compute.run(self._learner.apply, dispatch_id)

    async def discard(self) -> None:
        """Zero the gradients."""
        await self._compute.run(self._learner.discard)

    async def train_step(self, batch: BatchLease) -> StepReport:
        """Accumulate and apply as one piece of work: no cancellation comes between the two."""
        async with self._among_others():
            if (report := await self._compute.run(self._learner.settled, batch)) is not None:
                return report
            payloads = await self._fetch(batch)
            return await self._compute.run(self._learner.train_step, batch, payloads)

    async def outcome(self, dispatch_id: DispatchId) -> StepReport | None:
        """Wait for what is under way, then answer: a step in doubt may be just that."""
        return await self._compute.run(self._learner.outcome, dispatch_id)

    async def stage_weights(self, request: StageRequest) -> WeightsManifest:
        """Lend the parameters' own storage where ``exclusive``, else put a copy. Of shards, put what was gathered.

        A lent tensor changes with the next step. A repeat puts the weights of the same version once more.
        """
        async with self._among_others(self._parts):
            version, weights, probe = await self._compute.run(self._weights, request.exclusive)
        ref = PayloadRef(owner=request.owner, key=f"v{version}")
        await self._payloads.put(ref, weights)
        size_bytes = sum(tensor.nbytes for tensor in weights.values())
        return WeightsManifest(version=version, payload=ref, tensors=len(weights), size_bytes=size_bytes, probe=probe)

    async def snapshot(self) -> WeightVersion:
        """Copy weights and optimizer into the host's memory: a second time what they take."""
        async with self._among_others(self._parts):
            self._snapshot = await self._compute.run(checkpoint.copy_of, self._learner)
        return self._snapshot.version

    async def save(self, request: CheckpointRequest) -> WeightVersion:
        """Write a folder that transformers, or peft where there are adapters, loads too, tokenizer included.

        A snapshot is written in a thread of its own, beside the one that steps.
        """
        folder = Path(request.path)
        if self._snapshot is None:
            async with self._among_others(self._parts):
                return await self._compute.run(lambda: self._write(checkpoint.state_of(self._learner), folder))
        version = await self._writing.run(self._write, self._snapshot, folder)
        self._snapshot = None
        return version

    async def load(self, request: CheckpointRequest) -> WeightVersion:
        """Read such a folder, global random state included; learning rate and the like stay as configured."""
        return await self._compute.run(self._load, Path(request.path))

    async def close(self) -> None:
        """Wait until no thread works any more, whoever has stopped waiting for it, and end them."""
        await self._writing.close()
        await self._compute.close()

    async def contribute(self, to: Literal["weights", "state"]) -> WeightVersion:
        """Give the first rank this one's parts."""
        async with self._among_others(self._parts):
            return await self._compute.run(self._contribute, to)

    async def standing(self) -> Standing:
        """Wait for what is under way, then answer."""
        version, whole = await self._compute.run(lambda: (self._learner.version, self._learner.whole))
        return Standing(version=version, whole=whole, part=self._parts)

    async def offer(self, host: str) -> str:
        """Open a store to meet at."""
        return await self._compute.run(self._ranks.offer, host)

    async def check(self, request: CheckRequest) -> CheckReport:
        """Try this rank's device and its way to the others."""
        return await self._compute.run(node_check.check, request, self._ranks, self._learner.module.device)

    async def join(self, request: JoinRequest) -> None:
        """Meet the others and take over the source's state."""
        async with self._among_others():
            await self._compute.run(self._join, request)

    @asynccontextmanager
    async def _among_others(self, wait: bool = True) -> AsyncGenerator[None]:
        """Whoever fails or is cancelled leaves the others, if they ``wait`` for it in this call."""
        try:
            yield
        except BaseException:
            if wait and self._ranks.world > 1:
                with bounded_shield(LONGEST_PASS_S):
                    await self._compute.run(self._ranks.leave)  # noqa: ASYNC102 - the shield has a deadline
            raise

    def _join(self, request: JoinRequest) -> None:
        self._learner.place(request.rank, request.world)
        self._ranks.join(request, self._learner.module.device)
        self._learner.take_over(request.source)

    async def _fetch(self, batch: BatchLease) -> list[Bulk | None]:
        """Return the payloads of this rank's share, fetched at once: each takes a message there and back.

        Where one is lost, those of the others are looked for too: a process that is gone took many with it, and to find
        them one by one takes a step of all ranks, and a meeting, for each.

        Raises:
            PayloadLost: It names all that are.
        """
        mine = [group.payload for index, group in enumerate(batch.groups) if self._ranks.owns(index)]
        found, failures = await self._payloads_of(mine)
        if not failures:
            return [found.get(group.payload) for group in batch.groups]
        _, more = await self._payloads_of([group.payload for group in batch.groups if group.payload not in mine])
        lost = {exc.owner: exc for exc in (*failures, *more) if isinstance(exc, PayloadLost)}
        if not lost:
            raise failures[0]
        first, *others = [group.payload.owner for group in batch.groups if group.payload.owner in lost]
        raise PayloadLost(owner=first, cause=lost[first].cause, others=tuple(others)) from lost[first].__cause__

    async def _payloads_of(self, refs: Sequence[PayloadRef]) -> tuple[dict[PayloadRef, Bulk], list[ConductorError]]:
        """Fetch payloads; returns those that are there, and what became of the others."""
        found: dict[PayloadRef, Bulk] = {}
        failures: list[ConductorError] = []

        async def fetch(ref: PayloadRef) -> None:
            try:
                found[ref] = await owned("fetch", self._payload, ref)
            except ConductorError as exc:
                failures.append(exc)

        async with anyio.create_task_group() as tasks:
            for ref in refs:
                tasks.start_soon(fetch, ref, name=f"fetch of {ref.owner}")
        return found, failures

    async def _payload(self, ref: PayloadRef) -> Bulk:
        try:
            return await self._payloads.get(ref)
        except WorkerLost as exc:  # the payload is lost, not this trainer
            raise PayloadLost(owner=ref.owner, cause=exc.cause) from exc

    def _weights(self, lend: bool) -> tuple[WeightVersion, dict[str, Tensor], Probe]:
        layout, module = self._learner.layout, self._learner.module
        probe = probe_of(module)  # before there are copies: it may take memory as well
        weights = (layout.lent if lend else layout.copies)(named_weights(module))
        return self._learner.version, weights, probe

    def _contribute(self, to: Literal["weights", "state"]) -> WeightVersion:
        if to == "weights":
            return self._weights(False)[0]
        return checkpoint.copy_of(self._learner).version

    def _write(self, state: checkpoint.State, folder: Path) -> WeightVersion:
        checkpoint.write(state, folder)
        self._tokenizer.save(folder)
        return state.version

    def _load(self, folder: Path) -> WeightVersion:
        checkpoint.load(self._learner, folder)
        return self._learner.version


_: type[RankPort] = TorchTrainer


def layout_of(cfg: Config, ranks: Ranks) -> Layout:
    """Return how a job has what it trains lie on the ranks."""
    return Sharded(ranks) if cfg.sharding == "full_shard" else Replicated(ranks)


@asynccontextmanager
async def open_trainer(cfg: Config, host: Host) -> AsyncGenerator[TorchTrainer]:
    """Load and warm up in a thread; on exit wait until the threads rest."""
    compute, ranks = Compute(cfg.threads), Ranks(cfg.rank_timeout_s)

    def build() -> tuple[Learner, Tokenizer]:
        models, layout = load_models(host.site, cfg), layout_of(cfg, ranks)
        learner = Learner(models, cfg, site=host.site, interrupt=compute.interrupt, layout=layout)
        learner.warm_up()
        return learner, load_tokenizer(host.site)

    try:
        learner, tokenizer = await compute.run(build)
    except BaseException:
        await compute.close()  # noqa: ASYNC102 - shielded there, with a deadline
        raise
    trainer = TorchTrainer(learner, tokenizer, compute=compute, payloads=host.payloads)
    try:
        yield trainer
    finally:
        await trainer.close()  # noqa: ASYNC102 - shielded there, with a deadline

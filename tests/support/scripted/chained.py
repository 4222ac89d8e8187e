"""A trainer whose weights are a digest of all that it was ever trained on, in order."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import anyio
import msgspec

from backends.sim.trainer import ScriptedTrainer
from protocols.backend import PayloadPort
from protocols.messages import DispatchId, WeightVersion
from protocols.rollouts import GroupPayload
from protocols.training import BatchLease, CheckpointRequest, StepReport, TrainerPort


class ChainedTrainer(ScriptedTrainer):
    """Ends with other weights when one token, one advantage or the order of two groups is another.

    Args:
        payloads: Where groups are.
        step_s: How long a step takes.
        save_s: How long a checkpoint takes.

    Attributes:
        weights: The digest.
    """

    def __init__(self, payloads: PayloadPort, *, step_s: float = 1.0, save_s: float = 0.5) -> None:
        super().__init__(payloads, step_s=step_s)
        self._store = payloads
        self._save_s = save_s
        self._gradient = ""
        self._copy: str | None = None
        self.weights = "initial"

    async def train_step(self, batch: BatchLease) -> StepReport:
        """Take the payloads of the batch into account."""
        digest = hashlib.sha256(self.weights.encode())
        for group in batch.groups:
            payload = cast("GroupPayload | Mapping[str, object]", await self._store.get(group.payload))
            digest.update(msgspec.msgpack.encode((payload, group.samples)))
        self._gradient = digest.hexdigest()
        return await super().train_step(batch)

    async def apply(self, dispatch_id: DispatchId) -> StepReport:
        """Step."""
        report = await super().apply(dispatch_id)
        self.weights = self._gradient
        return report

    async def snapshot(self) -> WeightVersion:
        """Copy the digest as well."""
        version = await super().snapshot()
        self._copy = self.weights
        return version

    async def save(self, request: CheckpointRequest) -> WeightVersion:
        """Write the digest as well, which takes its time."""
        weights, self._copy = self._copy or self.weights, None
        await anyio.sleep(self._save_s)
        (Path(request.path) / "weights").write_text(weights)
        return await super().save(request)

    async def load(self, request: CheckpointRequest) -> WeightVersion:
        """Read it."""
        self.weights = (Path(request.path) / "weights").read_text()
        return await super().load(request)


_: type[TrainerPort] = ChainedTrainer

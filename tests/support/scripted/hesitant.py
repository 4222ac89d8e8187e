"""A trainer some of whose steps change nothing."""

from collections.abc import Collection

from backends.sim.clock import spend
from backends.sim.trainer import ScriptedTrainer
from protocols.backend import PayloadPort
from protocols.training import BatchLease, StepReport, TrainerPort


class HesitantTrainer(ScriptedTrainer):
    """Takes a second for a step that changes nothing.

    Args:
        payloads, step_s: As for every scripted trainer.
        idle: Numbers of the calls of ``train_step`` that change nothing, from 1.
    """

    def __init__(self, payloads: PayloadPort | None = None, *, step_s: float = 1.0, idle: Collection[int]) -> None:
        super().__init__(payloads, step_s=step_s)
        self._idle = frozenset(idle)
        self._calls = 0

    async def train_step(self, batch: BatchLease) -> StepReport:
        """Step, or report that nothing changed."""
        self._calls += 1
        if self._calls not in self._idle:
            return await super().train_step(batch)
        await spend(1.0)
        return StepReport(
            dispatch_id=batch.dispatch_id, version=self.version, mutated="no", consumed=(), metrics={"loss": 0.0}
        )


_: type[TrainerPort] = HesitantTrainer

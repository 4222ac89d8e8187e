"""The ports of one run: opened from the job, or made by hand."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from conductor.core.quarantine import Quarantine
from conductor.fleet.failover import Failover, Lose
from conductor.fleet.scaling import Scaler
from conductor.past import Past
from protocols.backend import Backend
from protocols.grading import GraderPort
from protocols.incidents import Incident, Scaled
from protocols.inference import InferenceControllerPort
from protocols.ledger import LedgerPort
from protocols.prompts import PromptSourcePort
from protocols.rollouts import RolloutExecutorPort
from protocols.tracking import TrackerPort
from protocols.training import TrainerPort


@dataclass(frozen=True, kw_only=True)
class Workloads:
    """Workloads made by hand; what is None comes from the job's section.

    Their maker opens and closes them. Those that use a payload store need a ``Backend`` with that store beside
    them, for the run releases payloads there. Engines and executors remember what was aborted: another run over
    the same ones needs another ``registration``.
    """

    prompts: PromptSourcePort | None = None
    executor: RolloutExecutorPort | None = None
    inference: InferenceControllerPort | None = None
    grader: GraderPort | None = None
    trainer: TrainerPort | None = None
    ledger: LedgerPort | None = None
    trackers: tuple[TrackerPort, ...] | None = None
    evaluation_prompts: PromptSourcePort | None = None
    evaluation_grader: GraderPort | None = None

    def sections(self) -> frozenset[str]:
        """Return the sections of the job that these stand for."""
        given = {
            "prompts": self.prompts,
            "episode": self.executor,
            "engine": self.inference,
            "reward": self.grader,
            "train": self.trainer,
            "ledger": self.ledger,
            "trackers": self.trackers,
            "evaluation.prompts": self.evaluation_prompts,
            "evaluation.reward": self.evaluation_grader,
        }
        return frozenset(section for section, workload in given.items() if workload is not None)


@dataclass(frozen=True, kw_only=True)
class EvaluationPorts:
    """What an evaluation has for itself; the rest it shares with the training.

    Attributes:
        prompts, grader: Its prompts, and who grades them.
        inference: Engines that only evaluate; None: it shares those of the training.
    """

    prompts: PromptSourcePort
    grader: GraderPort
    inference: InferenceControllerPort | None = None


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Everything the controller talks to; ``evaluation`` is None where the job has none.

    ``past``: what ``ledger`` told of earlier lives of the run, when it was read; None: this is the first.
    ``failovers``: of the roles whose workers the run launched. ``scaler``: of its engines; None: it launched none.
    ``quarantine``: which failure domains are set aside. ``lose``: takes note of workers that went with what they held.
    ``incidents``: what happened while the ports were opened. ``told``: is told of what happens later.
    """

    backend: Backend
    prompts: PromptSourcePort
    executor: RolloutExecutorPort
    inference: InferenceControllerPort
    grader: GraderPort
    trainer: TrainerPort
    ledger: LedgerPort
    trackers: tuple[TrackerPort, ...]
    past: Past | None = None
    evaluation: EvaluationPorts | None = None
    failovers: tuple[Failover, ...] = ()
    scaler: Scaler | None = None
    quarantine: Quarantine = field(default_factory=Quarantine)
    lose: Lose | None = None
    incidents: tuple[Incident | Scaled, ...] = ()
    told: Callable[[Incident], Awaitable[None]] | None = None

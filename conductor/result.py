"""What a run gives back."""

from protocols.messages import Message
from protocols.tracking import StepRecord


class Accounts(Message, frozen=True, kw_only=True):
    """Where every admitted group is, in groups: ``admitted = committed + filtered + dropped + open``."""

    admitted: int = 0
    committed: int = 0
    filtered: int = 0
    dropped: int = 0
    open: int = 0

    @property
    def balanced(self) -> bool:
        """Whether nothing is lost and nothing counted twice."""
        return self.admitted == self.committed + self.filtered + self.dropped + self.open


class SampleAccounts(Message, frozen=True, kw_only=True):
    """Where every sample of the admitted groups is; a committed group's are trained, or masked for want of a reward."""

    admitted: int = 0
    trained: int = 0
    masked: int = 0
    filtered: int = 0
    dropped: int = 0
    open: int = 0

    @property
    def balanced(self) -> bool:
        """Whether nothing is lost and nothing counted twice."""
        return self.admitted == self.trained + self.masked + self.filtered + self.dropped + self.open


class RunResult(Message, frozen=True, kw_only=True):
    """A finished run.

    Attributes:
        steps: Train steps taken.
        metrics: One record a step, oldest first; of a long run the last 10,000 (all are in the run's folder).
        evaluations: One record for each; its ``step`` is the version that was evaluated.
        checkpoint: Folder of the final checkpoint; None where nothing is written.
        accounts: Where every admitted group ended.
        samples: Trained samples.
        seconds: From the first admission to the last step.
        dropped: Groups dropped, by reason.
        failures: Masked samples, retried groups and failed evaluations, by class.
        run_dir: Folder of the run; None where nothing is written.
    """

    steps: int
    metrics: tuple[StepRecord, ...]
    checkpoint: str | None
    accounts: Accounts
    samples: int
    seconds: float
    dropped: dict[str, int] = {}
    failures: dict[str, int] = {}
    run_dir: str | None = None
    evaluations: tuple[StepRecord, ...] = ()

    @property
    def samples_per_s(self) -> float:
        """Trained samples per second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def reward_first(self) -> float | None:
        """Mean reward of the first step."""
        return self.metrics[0].metrics.get("reward/mean") if self.metrics else None

    @property
    def reward_last(self) -> float | None:
        """Mean reward of the last 10 steps, each weighing the same."""
        last = [record.metrics["reward/mean"] for record in self.metrics[-10:] if "reward/mean" in record.metrics]
        return sum(last) / len(last) if last else None

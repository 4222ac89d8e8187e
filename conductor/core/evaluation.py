"""One evaluation: its own accounts, kept apart from those of the run, and when one is due."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocols.errors import InvariantError, PortFailed
from protocols.grading import Grade, GradeFault
from protocols.messages import LeaseId, RegistrationKey, WeightVersion
from protocols.rollouts import GroupReceipt, RolloutLease


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A prompt that was evaluated: the lengths of its completions, and a grade or fault for each."""

    lengths: tuple[int, ...]
    grades: tuple[Grade | GradeFault, ...]


@dataclass(kw_only=True)
class Evaluation:
    """Where every prompt of an evaluation is: ``prompts = waiting + running + graded + failed``.

    Attributes:
        version: The weights that it is pinned to.
        prompts: How many there are.
        began: When, in seconds of the loop's clock.
        running: Prompts that are generated or graded.
        graded: Those that are done; failed: how many could not be.
    """

    version: WeightVersion
    prompts: int
    began: float
    running: int = 0
    graded: list[Graded] = field(default_factory=list)
    failed: int = 0

    @property
    def waiting(self) -> int:
        """Prompts that nothing was done with."""
        return self.prompts - self.running - len(self.graded) - self.failed

    def add(self, receipt: GroupReceipt, grades: Sequence[Grade | GradeFault]) -> None:
        """Count a prompt that is done."""
        lengths = tuple(sample.tokens for sample in receipt.samples)
        self.graded.append(Graded(lengths=lengths, grades=tuple(grades)))


def due(every: int, *, first: WeightVersion, evaluated: WeightVersion | None, version: WeightVersion) -> bool:
    """Return whether ``version`` is the first one served since an evaluation was due.

    Args:
        every: Steps between two; 0: none on the way.
        first: The version before the first step of the run.
        evaluated: The last one evaluated; None: none was.
        version: That the engines serve.
    """
    return every > 0 and (version - first) // every > ((evaluated or first) - first) // every


def evaluation_seed(seed: int) -> int:
    """Return the seed of the random streams of every evaluation: none of them is one of the training's."""
    return int.from_bytes(hashlib.sha256(f"{seed}/evaluation".encode()).digest()[:6], "big")


def evaluations_prefix(registration: RegistrationKey) -> str:
    """Return the prefix of every request of every evaluation, ``policy.1/E``."""
    return f"{registration.prefix}E"


def evaluation_prefix(registration: RegistrationKey, version: WeightVersion) -> str:
    """Return the prefix of every request of an evaluation, ``policy.1/E3/``."""
    return f"{evaluations_prefix(registration)}{version}/"


def evaluation_id(version: WeightVersion, position: int) -> LeaseId:
    """Return what stands in the place of a lease's id in requests: nothing is lent, and no table knows it."""
    return LeaseId(f"E{version}/{position}")


def check_receipt(receipt: GroupReceipt, lease: RolloutLease, version: WeightVersion) -> None:
    """Check that a receipt is the one asked for, and made by the weights that are evaluated.

    Raises:
        InvariantError: It is another one's.
        PortFailed: Other weights made some of its tokens.
    """
    found = (receipt.lease_id, receipt.attempt, len(receipt.samples))
    if found != (lease.lease_id, lease.attempt, lease.group_size):
        raise InvariantError(f"{lease.lease_id} attempt {lease.attempt} was answered with the receipt of {found}")
    versions = set(receipt.versions)
    if versions - {version}:
        raise PortFailed(f"{lease.lease_id} was made by v{max(versions)}, and v{version} is evaluated")

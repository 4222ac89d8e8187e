"""Training steps."""

from typing import Literal, Protocol

from protocols.inference import WeightsManifest
from protocols.messages import DispatchId, LeaseId, Message, PayloadRef, RegistrationKey, WeightVersion

Algorithm = Literal[
    "grpo",
    "dapo",
    "dr_grpo",
    "rloo",
    "maxrl",
    "lite_ppo",
    "gspo",
    "cispo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "ppo",
]
"""Names of algorithms: the controller knows what each does with rewards, a trainer what it does with tokens."""


class SampleRow(Message, frozen=True, kw_only=True):
    """One sample of a batch.

    Attributes:
        sample: Index in the group's payload.
        advantage: Of the sample among its group or batch, dimensionless; 0 where the algorithm estimates advantages
            of tokens, which is the trainer's part.
        reward: What the sample earned; 0 for a masked one.
        weight: 1, or 0 for a masked sample: it then counts nowhere in the loss.
    """

    sample: int
    advantage: float
    reward: float = 0.0
    weight: float = 1.0


class GroupRow(Message, frozen=True, kw_only=True):
    """One lent group in a batch."""

    lease_id: LeaseId
    attempt: int
    payload: PayloadRef
    samples: tuple[SampleRow, ...]


class BatchLease(Message, frozen=True, kw_only=True):
    """Graded groups lent to the trainer for one step.

    Attributes:
        dispatch_id: Names the step; repeating it does not repeat the step.
        registration: Whose parameters may change.
        version: The trainer's version that the step starts from.
        groups: In the order of admission; each lease once.
    """

    dispatch_id: DispatchId
    registration: RegistrationKey
    version: WeightVersion
    groups: tuple[GroupRow, ...]


class AccumulateReport(Message, frozen=True, kw_only=True):
    """Gradients of a batch are accumulated; parameters are as they were.

    Attributes:
        dispatch_id: As asked.
        metrics: Of the loss, by name.
    """

    dispatch_id: DispatchId
    metrics: dict[str, float]


class StepReport(Message, frozen=True, kw_only=True):
    """The outcome of a step.

    Attributes:
        dispatch_id: As asked.
        version: The trainer's version after it.
        mutated: Whether parameters changed: ``partial`` must be discarded before the next step.
        consumed: The leases whose samples took part, as they were bound.
        metrics: Loss, gradient norm and the like, by name.
    """

    dispatch_id: DispatchId
    version: WeightVersion
    mutated: Literal["no", "partial", "yes"]
    consumed: tuple[LeaseId, ...]
    metrics: dict[str, float]


class StageRequest(Message, frozen=True, kw_only=True):
    """Weights wanted for publishing.

    Attributes:
        owner: Owner of the payload in the payload store.
        exclusive: The caller promises that nothing generates from these weights while a later step
            changes parameters. Then tensors may be lent without a copy where trainer and engine share
            a process.
    """

    owner: str
    exclusive: bool


class CheckpointRequest(Message, frozen=True, kw_only=True):
    """A folder, absolute; it exists and is empty on ``save``."""

    path: str


class TrainerPort(Protocol):
    """Parameters and optimizer. One call at a time, but ``outcome`` at any time, and ``save`` as it says."""

    async def accumulate(self, batch: BatchLease) -> AccumulateReport:
        """Check the batch, fetch its payloads, add its gradients. Parameters stay as they are.

        Cancelling: between two micro-batches; then ``discard``.

        Raises:
            InvariantError: Ids repeat, or ``registration`` or ``version`` are not the trainer's.
            PayloadLost: A payload is gone, or is not that of the group that the batch names.
        """
        ...

    async def apply(self, dispatch_id: DispatchId) -> StepReport:
        """Step the optimizer with what was accumulated and end the gradient window.

        Cancelling: it happened whole or not at all; ``outcome`` says which.

        Raises:
            InvariantError: Another dispatch, or none, is accumulated.
        """
        ...

    async def discard(self) -> None:
        """Throw accumulated gradients away and end the gradient window. Idempotent."""
        ...

    async def train_step(self, batch: BatchLease) -> StepReport:
        """``accumulate`` and ``apply``; a repeated ``dispatch_id`` returns the first report.

        Where it failed and ``outcome`` knows nothing of it, ``discard`` lets it be taken again.

        Raises:
            WorkerLost: The trainer is gone, and its parameters with it.
        """
        ...

    async def outcome(self, dispatch_id: DispatchId) -> StepReport | None:
        """Return the report of the last step if it was ``dispatch_id``'s; None: it did not happen."""
        ...

    async def stage_weights(self, request: StageRequest) -> WeightsManifest:
        """Put the current weights into the payload store. Idempotent for one owner and version."""
        ...

    async def snapshot(self) -> WeightVersion:
        """Copy what the next ``save`` is to write, so that steps may go on meanwhile; returns its version.

        It takes the place of one that was not written.
        """
        ...

    async def save(self, request: CheckpointRequest) -> WeightVersion:
        """Write everything that ``load`` needs; returns the version written. Not atomic: the caller renames.

        Of the snapshot, where one was taken: other calls may then come meanwhile, but neither ``snapshot`` nor
        ``load``, and on return it is gone. Else of what there is now.

        Raises:
            SnapshotLost: The snapshot is gone, and the trainer is not.
        """
        ...

    async def load(self, request: CheckpointRequest) -> WeightVersion:
        """Continue from a folder that ``save`` wrote; returns its version.

        Raises:
            UserError: The folder is of another model or incomplete.
        """
        ...


class JoinRequest(Message, frozen=True, kw_only=True):
    """Ranks are to meet and train together.

    Attributes:
        generation: Counts the meetings; nobody meets anybody of an older one.
        rank: Which of them this one is.
        world: How many they are.
        source: The rank whose state all others take over.
        address: Where they meet, ``host:port``; one of them offered it.
    """

    generation: int
    rank: int
    world: int
    source: int
    address: str


class Standing(Message, frozen=True, kw_only=True):
    """How far a rank has come.

    Attributes:
        version: Of its parameters.
        whole: Whether they are those of a version: a step of several updates was not left half-way.
        part: Whether it holds a part of them only, which no other rank has.
    """

    version: WeightVersion
    whole: bool
    part: bool = False


class CheckRequest(Message, frozen=True, kw_only=True):
    """Some ranks are to compute and to exchange what they computed, to see whether their nodes can.

    Attributes:
        trial: Counts the trials; nobody meets anybody of another one.
        rank: Which of them this one is.
        world: How many they are; 1: it is alone, and exchanges nothing.
        address: Where they meet, ``host:port``; the first of them offered it.
        patience_s: How long one waits for the others.
    """

    trial: int
    rank: int
    world: int
    address: str
    patience_s: float


class CheckReport(Message, frozen=True, kw_only=True):
    """How long that took, in seconds: computing alone, and exchanging from when all were there."""

    compute_s: float
    exchange_s: float


class RankPort(TrainerPort, Protocol):
    """One of several processes that train one policy together, each its share of every batch.

    After ``join``, ``accumulate``, ``apply``, ``train_step`` are called on all ranks at once with the same batch, and
    all give the same report. A rank whose call fails or is cancelled leaves the others, whose calls then fail with
    ``PeersLost``; what follows is another ``join``. ``stage_weights``, ``snapshot`` and ``save`` are called on any one
    of them. Where each holds a part, they are called on the first, and ``contribute`` on the others at once, but for a
    ``save`` of a snapshot, which needs nobody.
    """

    async def contribute(self, to: Literal["weights", "state"]) -> WeightVersion:
        """Give what this rank holds to the first one, which stages ``weights``, or copies or saves the ``state``.

        Raises:
            PeersLost: It went, and has nothing.
        """
        ...

    async def standing(self) -> Standing:
        """Return how far this rank has come; waits for what is under way."""
        ...

    async def offer(self, host: str) -> str:
        """Offer a place to meet under the name ``host``, or its node's own where that is empty; returns its address."""
        ...

    async def check(self, request: CheckRequest) -> CheckReport:
        """Compute and exchange a little with some others, which are called at once; nothing that is trained changes.

        It waits for what is under way. Cancelling: it ends within ``patience_s``.

        Raises:
            PeersLost: Some did not come, or went.
            PortFailed: What was computed or exchanged is wrong.
        """
        ...

    async def join(self, request: JoinRequest) -> None:
        """Meet the others and take over the state of ``source``: parameters, optimizer, version, last report.

        Cancelling: it has joined nobody.

        Raises:
            PeersLost: Some did not come.
        """
        ...

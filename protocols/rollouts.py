"""Playing the episodes of a lease, and the receipts that stand for them."""

from typing import Any, Literal, Protocol

from protocols.inference import AbortReport, Sampling, Segment
from protocols.messages import LeaseId, Message, PayloadRef, RegistrationKey, WeightVersion, attempt_prefix
from protocols.prompts import Prompt


class RolloutLease(Message, frozen=True, kw_only=True):
    """One prompt lent out for ``group_size`` rollouts.

    Attributes:
        lease_id: Whose work it is.
        attempt: From 0; readmission adds 1.
        registration: Which tenant of the engines serves it.
        prompt: What is lent.
        group_size: Number of samples, at least 1.
        sampling: How tokens are drawn.
        seed: Seed of the run; with ``prompt.position`` it names the random streams.
    """

    lease_id: LeaseId
    attempt: int
    registration: RegistrationKey
    prompt: Prompt
    group_size: int
    sampling: Sampling
    seed: int

    @property
    def prefix(self) -> str:
        """The prefix of all of its request ids and the owner of its payloads."""
        return attempt_prefix(self.registration, self.lease_id, self.attempt)


class SamplePayload(Message, frozen=True, kw_only=True):
    """Bulk data of one sample: what the trainer needs and the grader reads.

    Attributes:
        token_ids: Completion, length ``T``.
        logprobs: Of the policy that made them, length ``T``, natural logarithms.
        text: The completion as text, without its stop token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str


class GroupPayload(Message, frozen=True, kw_only=True):
    """Bulk data of one group, put into the payload store by the executor.

    Attributes:
        prompt_ids: Token ids of the prompt, as the engine saw them.
        prompt_text: The prompt as text.
        temperature: That the log-probabilities were taken at.
        samples: In the order of the receipt.
    """

    prompt_ids: tuple[int, ...]
    prompt_text: str
    temperature: float
    samples: tuple[SamplePayload, ...]


class SampleReceipt(Message, frozen=True, kw_only=True):
    """What the controller knows of one sample.

    Attributes:
        tokens: Length of the completion; 0 is possible and weighs nothing.
        segments: Which weights made which tokens, in order.
        finish: Why it ended.
        preview: Start of the text, for people.
        engine: Which engine made it, where that is known.
    """

    tokens: int
    segments: tuple[Segment, ...]
    finish: Literal["stop", "length"]
    preview: str
    engine: str = ""


class GroupReceipt(Message, frozen=True, kw_only=True):
    """Stands for the finished rollouts of one lease. Minted once by the executor, carried verbatim.

    Attributes:
        lease_id, attempt: As in the lease.
        prompt_tokens: Length of the prompt.
        payload: Where the ``GroupPayload`` lies.
        samples: ``group_size`` of them, in order.
        metadata: Opaque to the controller; JSON values.
    """

    lease_id: LeaseId
    attempt: int
    prompt_tokens: int
    payload: PayloadRef
    samples: tuple[SampleReceipt, ...]
    metadata: dict[str, Any] = {}

    @property
    def tokens(self) -> int:
        """Tokens of all completions together."""
        return sum([sample.tokens for sample in self.samples])

    @property
    def versions(self) -> list[WeightVersion]:
        """The weights that made its tokens, a segment each, sample by sample; empty where there are no tokens."""
        return [segment.version for sample in self.samples for segment in sample.segments]


class RolloutExecutorPort(Protocol):
    """Plays the episodes of leases. Any number of leases at a time, each at most once at a time."""

    async def generate(self, lease: RolloutLease) -> GroupReceipt:
        """Play ``group_size`` episodes and store their payload under the owner ``lease.prefix``.

        Sampling goes to the inference controller. Not idempotent: a new attempt is a new call.
        Cancelling: stops playing as a best effort; only ``abort`` confirms.

        Raises:
            DataFault: The prompt cannot be played.
            Transient: An engine was lost or too slow; another attempt may work.
            Aborted: The attempt was aborted.
        """
        ...

    async def abort(self, prefix: str) -> AbortReport:
        """End the episodes and requests of every attempt whose prefix starts with ``prefix``.

        Idempotent; may come before, during and after ``generate``. Their payloads are released.
        """
        ...

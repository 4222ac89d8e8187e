"""Generating: one engine, and the controller of all engines."""

from typing import Annotated, Literal, Protocol

from msgspec import Meta

from protocols.messages import Message, PayloadRef, WeightVersion, WorkerId


class Sampling(Message, frozen=True, kw_only=True):
    """How tokens are drawn.

    Attributes:
        max_tokens: Most tokens of one completion, the stop token included.
        temperature: Divides the logits; 0 takes the likeliest token.
        top_p: Smallest set of tokens whose probability reaches this is kept, in (0, 1].
        top_k: Number of likeliest tokens kept; 0 keeps all.
        stop: Texts that end a completion; the model's end-of-sequence token always does. Each must be
            a single token of the model.
    """

    max_tokens: Annotated[int, Meta(ge=1)]
    temperature: Annotated[float, Meta(ge=0)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    stop: tuple[Annotated[str, Meta(min_length=1)], ...] = ()


class Segment(Message, frozen=True, kw_only=True):
    """``count`` consecutive tokens made by the weights ``version``."""

    version: WeightVersion
    count: int


class SampleRequest(Message, frozen=True, kw_only=True):
    """One completion asked for.

    Attributes:
        request_id: ``registration/lease/attempt/sample/turn``, unique among live requests.
        stream: Name of the random stream that draws its tokens (``messages.stream_name``).
    """

    request_id: str
    stream: str


class GenerateRequest(Message, frozen=True, kw_only=True):
    """Completions of one prompt. The prompt is computed once for all of them.

    Attributes:
        prompt_ids: Token ids, at least one.
        samples: At least one; a group asks for all of its samples in one request.
        sampling: How tokens are drawn.
        stop_token_ids: End a completion and are part of it.
    """

    prompt_ids: tuple[int, ...]
    samples: tuple[SampleRequest, ...]
    sampling: Sampling
    stop_token_ids: tuple[int, ...] = ()


class Completion(Message, frozen=True, kw_only=True):
    """What one sample became.

    Attributes:
        request_id: As asked.
        token_ids: Length ``T``, the stop token included; may be empty.
        logprobs: Natural logarithms, length ``T``, of the softmax over logits divided by the
            temperature (by 1 where the temperature is 0), before ``top_p`` and ``top_k``: the policy
            that the trainer differentiates.
        segments: Which weights made which tokens, in order; counts add up to ``T``.
        finish: ``stop`` at a stop token, ``length`` at ``max_tokens`` or the end of the context.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    segments: tuple[Segment, ...]
    finish: Literal["stop", "length"]


class Generation(Message, frozen=True, kw_only=True):
    """The answer to a ``GenerateRequest``.

    Attributes:
        completions: One a sample, in the order asked.
        engine: Who made them, where there are many.
    """

    completions: tuple[Completion, ...]
    engine: str = ""


class Probe(Message, frozen=True, kw_only=True):
    """What some weights make of fixed tokens, for who was given them to say the same.

    Attributes:
        token_ids: At least two.
        logprobs: Of each token but the first, given those before it, at temperature 1.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class WeightsManifest(Message, frozen=True, kw_only=True):
    """Weights staged for publishing.

    Attributes:
        version: The trainer's version they were taken at.
        payload: A mapping of parameter names to tensors in the payload store.
        tensors: Number of tensors.
        size_bytes: Bytes of all tensors.
        probe: What the trainer computes with them; None: it does not say.
    """

    version: WeightVersion
    payload: PayloadRef
    tensors: int
    size_bytes: int
    probe: Probe | None = None


class EngineStatus(Message, frozen=True, kw_only=True):
    """What an engine says of itself.

    Attributes:
        version: Weights it serves; None while it is stale.
        live: Number of requests that run or wait.
        context: Most tokens of prompt and completion together.
        paused: Whether it stands still between two tokens.
        held: How many of the live ones wait for their turn.
        allowed: The most that are worked on at once, as things are; None: it does not say.
    """

    version: WeightVersion | None
    live: int
    context: int
    paused: bool = False
    held: int = 0
    allowed: int | None = None


class EnginePort(Protocol):
    """One engine. Every method may be called at any time, concurrently with every other."""

    async def status(self) -> EngineStatus:
        """Return what the engine is doing. Answers also while tokens are being made."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate all samples of ``request``; they join the running batch between two tokens.

        A request has one fate: when one of its samples is aborted, all are.
        Cancelling: the samples are dropped between two tokens, as a best effort; only ``abort`` confirms.

        Raises:
            Aborted: A sample matched an aborted prefix, before or after it arrived.
            EngineStale: No weights have been loaded.
            EngineBusy: The queue is full.
            PromptTooLong: No room for a single token.
            BadPrompt: It is empty, or the model has no token of some id.
            WorkerLost: The engine is gone.
        """
        ...

    async def abort(self, prefix: str) -> frozenset[str]:
        """End every request whose id starts with ``prefix``, between two tokens, and remember the prefix.

        Idempotent. The abort may overtake its request: one that comes later is refused.

        Returns:
            The ids that were live and now are not.
        """
        ...

    async def live_requests(self) -> frozenset[str]:
        """Return the ids of all samples that run or wait."""
        ...

    async def load_weights(self, manifest: WeightsManifest) -> WeightVersion:
        """Swap the weights between two tokens; running requests go on under the new ones.

        Idempotent: a version that is already served is not loaded again. Cancelling: the swap either
        happened whole or not at all.

        Returns:
            The version served from the next token on.

        Raises:
            InvariantError: The weights do not fit the model; the old ones are served on.
            Transient: The payload is not there.
            WorkerLost: The engine is gone.
        """
        ...

    async def pause(self) -> None:
        """Stand still between two tokens; running requests are kept. Idempotent."""
        ...

    async def resume(self) -> None:
        """Go on after ``pause``. Idempotent."""
        ...


class AbortReport(Message, frozen=True, kw_only=True):
    """What became of an abort.

    Attributes:
        confirmed: Ids that were live and, as the engines' own live sets say, are not any more.
        unconfirmed: Ids that still run, or whose engine did not answer (then the engine's name).
    """

    confirmed: frozenset[str] = frozenset()
    unconfirmed: frozenset[str] = frozenset()


PublishMode = Literal["inflight", "interrupt", "drain"]
"""How running requests meet new weights: they go on with them between two tokens; they are kept standing while the
weights are loaded; or they finish first."""


class PublishReceipt(Message, frozen=True, kw_only=True):
    """Which members serve which version after a publish.

    Attributes:
        version: What was published.
        confirmed: Members that serve it.
        stale: Members that did not confirm it yet; they get no requests until they do, and nobody waits for them.
    """

    version: WeightVersion
    confirmed: frozenset[WorkerId]
    stale: frozenset[WorkerId] = frozenset()


class Readiness(Message, frozen=True, kw_only=True):
    """Who can generate now.

    Attributes:
        members: Engines that serve confirmed weights.
        stale: Engines that live but hold no confirmed weights.
        lost: Engines that did not answer.
    """

    members: frozenset[WorkerId]
    stale: frozenset[WorkerId] = frozenset()
    lost: frozenset[WorkerId] = frozenset()


class InferenceControllerPort(Protocol):
    """All engines of one registration: their weights and every live request.

    Every method may be called at any time, concurrently with every other.
    """

    async def endpoint(self) -> str:
        """Return the name under which an executor reaches these engines."""
        ...

    async def prepare_rollout(self) -> Readiness:
        """Probe the engines that serve, mark the lost ones, resume what stands still. Idempotent."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate on an engine that serves confirmed weights; same terms as ``EnginePort.generate``.

        Waits while none does, once weights have been published.

        Raises:
            EngineStale: None have been.
            Stalled: No engine came to serve the weights in the time that the controller gives them.
        """
        ...

    async def abort(self, prefix: str) -> AbortReport:
        """End every request whose id starts with ``prefix`` on every engine. Idempotent.

        The confirmed ids are compared with what the engines themselves say is live.
        """
        ...

    async def live_requests(self) -> frozenset[str]:
        """Return what the engines themselves say is live."""
        ...

    async def publish(self, manifest: WeightsManifest) -> PublishReceipt:
        """Load ``manifest`` into every member that has not confirmed its version.

        A member gets no new requests until it has; what becomes of those that run, the controller was made for.

        Idempotent. A member that fails, or is silent for longer than its share of the time, is stale, and what it
        worked on may be tried elsewhere. The controller brings such members back by itself, as well as those that are
        lost and found later: ``manifest`` stays readable until another one is published. Cancelling: members that
        confirmed stay confirmed, and the others go on loading.

        Raises:
            Stalled: No member confirmed the version in the time that the controller gives them; it names each.
        """
        ...

    async def versions(self) -> dict[WorkerId, WeightVersion | None]:
        """Return the version each member has confirmed; None for a stale one."""
        ...

    async def statuses(self) -> dict[WorkerId, EngineStatus | None]:
        """Return what each member says of itself; None for one that does not answer. Changes nothing."""
        ...

    async def pause(self) -> None:
        """Let every engine stand still between two tokens. Idempotent."""
        ...

    async def resume(self) -> None:
        """Let every engine go on. Idempotent."""
        ...

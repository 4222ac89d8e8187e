"""What the interface of a server must offer, in the port's terms."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from backends.engines._http.cargo import Cargo
from backends.engines._http.window import Load
from protocols.inference import GenerateRequest, SampleRequest


class ServerState(NamedTuple):
    """What a server says of itself.

    Attributes:
        label: Of the weights that make its next token.
        paused: Whether it stands still.
    """

    label: str
    paused: bool


class LabelledSpan(NamedTuple):
    """So many tokens made by the weights with a label."""

    label: str
    tokens: int


class Answered(NamedTuple):
    """What became of one sample, as the server tells it; an aborted one may be in part."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[LabelledSpan]
    finish: Literal["stop", "length", "abort"]


class Scored(NamedTuple):
    """What one server makes of tokens.

    Attributes:
        server: Which.
        logprobs: Of each token but the first, at temperature 1, under the weights that it has now.
    """

    server: str
    logprobs: Sequence[float]


class Dialect(Protocol):
    """Paths and bodies of one interface. Keeps no state; all methods may run at once and be repeated.

    All raise ``ServerRefused``, ``WorkerLost`` and ``Transient`` as ``Connection`` does.
    """

    async def healthy(self) -> None:
        """Return if the server takes requests."""
        ...

    async def context(self) -> int:
        """Return the most tokens of prompt and completion together."""
        ...

    async def state(self) -> ServerState:
        """Return the label of its weights, and whether it is paused."""
        ...

    async def load(self) -> Load:
        """Return what it works on."""
        ...

    def refusal(self, request: GenerateRequest) -> str | None:
        """Return why the server's log-probabilities would not be those that the port promises; None: they are."""
        ...

    async def generate(
        self, sample: SampleRequest, request: GenerateRequest, salt: str, undo: Callable[[], Awaitable[None]]
    ) -> Answered:
        """Generate one sample of a request.

        Args:
            sample: Which.
            request: The whole of it; ``max_tokens`` fits the context.
            salt: Only requests with the same salt may share computed prompts.
            undo: Ends what may run under this id; called before it is asked for again.
        """
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ask for the end of requests; whether they have ended, their answers tell."""
        ...

    async def pause(self) -> None:
        """Let it stand still, and keep what runs."""
        ...

    async def resume(self) -> None:
        """Let it go on."""
        ...

    async def publish(self, cargo: Cargo, label: str, loading: str) -> None:
        """Let a paused server load weights.

        Args:
            cargo: Safetensors files in a folder, at a path that the server sees too; or what is sent to it.
            label: What they are called from then on.
            loading: What they are called while nobody knows which they are.
        """
        ...

    async def score(self, token_ids: Sequence[int]) -> Sequence[Scored]:
        """Return what each server that may answer makes of tokens."""
        ...


def seed_of(stream: str) -> int:
    """Return the seed that stands for a random stream, below 2**63: what both servers' integers hold."""
    return int.from_bytes(hashlib.blake2b(stream.encode(), digest_size=8).digest(), "little") >> 1

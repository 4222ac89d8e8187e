"""The torch engine as a server sees it: weights by label from folders, requests by their clients' names."""

import itertools
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anyio
import anyio.to_thread
import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file

from backends.engines._broadcast import BroadcastFailed, Invitation, receiving
from backends.engines._http.adapters import module_name
from backends.engines._http.files import SUMS, crc_of
from backends.engines._serve.web import Refused
from backends.engines.torch.engine import OnToken, TorchEngine
from backends.models.tokenizers import Tokenizer
from protocols.aio import Doorbell
from protocols.errors import Aborted, UserError
from protocols.inference import Completion, GenerateRequest, SampleRequest, Sampling
from protocols.messages import WeightVersion

FIRST_LABEL = "default"
"""What both servers call the weights that they were started with."""

Finish = Literal["stop", "length", "abort"]


class Span(NamedTuple):
    """Tokens ``start`` to ``end`` of an answer were made by the weights that ``version`` labels."""

    version: str
    start: int
    end: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as both servers write it."""
        return self._asdict()


class Made(NamedTuple):
    """One answer; an aborted one has no tokens."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span]
    finish: Finish


class ServedEngine:
    """Keeps what the servers know and the engine does not: labels, and which request has which name.

    A client's name is not the engine's: an abort ends what runs under a name now, and nothing that comes later. The
    engine's own ids begin with a number that is never used again, so the prefix of an abort hits one request.

    Args:
        engine: Loaded with its model's own weights.
        tokenizer: The model's.
        context: Most tokens of prompt and completion.
        model: What clients call the model.
        unheld: Number of the load, from 1, that is answered and not done; 0: none.
    """

    def __init__(self, engine: TorchEngine, tokenizer: Tokenizer, *, context: int, model: str, unheld: int = 0) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.context = context
        self.model = model
        self.label = FIRST_LABEL
        self.paused = False
        self._labels = [FIRST_LABEL]
        self._numbers = itertools.count()
        self._loads = itertools.count(1)
        self._unheld = unheld
        self._running: dict[int, str] = {}
        self._moved = Doorbell()

    @property
    def running(self) -> int:
        """How many requests run or wait."""
        return len(self._running)

    async def busy(self) -> tuple[int, int]:
        """Return how many requests run, and how many wait."""
        waiting = min(self.running, (await self.engine.status()).held)
        return self.running - waiting, waiting

    async def generate(
        self,
        name: str,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        stops: Sequence[int],
        seed: int | None = None,
        count: int = 1,
        on_token: OnToken | None = None,
    ) -> list[Made]:
        """Generate ``count`` answers; equal seeds draw equal tokens.

        Args:
            name: The client's, for aborts.
            prompt_ids: At least one.
            sampling: How tokens are drawn.
            stops: Tokens that end an answer and are part of it.
            seed: Of the random numbers; None: any.
            count: Of answers.
            on_token: Is given the number of the answer, as text, in place of an id.

        Raises:
            ConductorError: As the engine's.
        """
        number = next(self._numbers)
        stream = f"seed {seed}" if seed is not None else f"request {number}"
        samples = tuple(
            SampleRequest(request_id=f"{number}/{index}", stream=f"{stream}/{index}") for index in range(count)
        )
        request = GenerateRequest(
            prompt_ids=tuple(prompt_ids), samples=samples, sampling=sampling, stop_token_ids=tuple(stops)
        )
        self._running[number] = name
        try:
            generation = await self.engine.generate(request, _numbered(on_token))
        except Aborted:
            return [Made((), (), (), "abort")] * count
        finally:
            del self._running[number]
            self._moved.ring()
        return [self._made(completion) for completion in generation.completions]

    async def abort(self, names: Sequence[str] | None) -> int:
        """End what runs under these very names, or everything; returns how many that were."""
        hit = [number for number, name in self._running.items() if names is None or name in names]
        for number in hit:
            await self.engine.abort(f"{number}/")
        return len(hit)

    async def pause(self, running: Literal["keep", "wait", "abort"]) -> None:
        """Stand still; what runs is kept, waited for, or aborted. What comes later waits."""
        if running == "abort":
            await self.abort(None)
        if running == "wait":
            while self._running:
                await self._moved.wait()
        await self.engine.pause()
        self.paused = True

    async def resume(self) -> None:
        """Go on."""
        await self.engine.resume()
        self.paused = False

    async def relabel(self, label: str) -> None:
        """Let the tokens from the next one on bear another label."""
        await self._swap(label, None)

    async def load(self, folder: str, *, label: str | None = None) -> None:
        """Serve the weights of a folder, as ``save_pretrained`` writes one.

        Args:
            folder: On this machine.
            label: What to call them; None: as before.

        Raises:
            Refused: They are damaged, or of another model; the old ones are served on.
        """
        held = self.next_is_held()
        names = set(await self.engine.weights())
        try:
            weights = await anyio.to_thread.run_sync(read_weights, Path(folder), names)
        except (OSError, SafetensorError, UserError) as exc:
            raise Refused(HTTPStatus.BAD_REQUEST, f"the weights in {folder} cannot be loaded: {exc}") from exc
        await self._swap(self.label if label is None else label, weights if held else None)

    async def receive(self, invitation: Invitation) -> None:
        """Serve weights that a sender broadcasts; they are kept together before the first is served.

        Raises:
            Refused: They did not come, or are of another model; the old ones are served on.
        """
        held = self.next_is_held()
        names = set(await self.engine.weights())
        try:
            weights = await anyio.to_thread.run_sync(_received, invitation, names)
        except (BroadcastFailed, UserError) as exc:
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, f"the weights were not received: {exc}") from exc
        await self._swap(self.label, weights if held else None)

    def next_is_held(self) -> bool:
        """Count an update of weights; returns whether it is one that is done, and not only answered."""
        return next(self._loads) != self._unheld

    async def update(self, weights: Mapping[str, Any]) -> None:
        """Serve other weights in place of those of the same names.

        Raises:
            InvariantError: They are of another model; the old ones are served on.
        """
        others = {name: tensor.float() for name, tensor in weights.items()}
        await self._swap(self.label, {**await self.engine.weights(), **others})

    async def _swap(self, label: str, weights: Mapping[str, Any] | None) -> None:
        self._labels.append(label)  # before the swap: its version may be met at once
        await self.engine.swap(WeightVersion(len(self._labels) - 1), weights)
        self.label = label

    def _made(self, completion: Completion) -> Made:
        spans: list[Span] = []
        end = 0
        for segment in completion.segments:
            label, start = self._labels[segment.version], end
            end += segment.count
            if spans and spans[-1].version == label:
                start = spans.pop().start
            spans.append(Span(label, start, end))
        return Made(completion.token_ids, completion.logprobs, spans, completion.finish)


def _numbered(on_token: OnToken | None) -> OnToken | None:
    if on_token is None:
        return None
    return lambda request_id, token, logprob: on_token(request_id.partition("/")[2], token, logprob)


def read_weights(folder: Path, names: set[str]) -> dict[str, Any]:
    """Read the tensors that a model needs from the files of a folder; more may be in them, as for tied weights.

    Raises:
        UserError: A file is not what its sum says, or a tensor is missing.
        OSError, SafetensorError: A file cannot be read.
    """
    sums: dict[str, int] = {}
    if (folder / SUMS).exists():
        sums = msgspec.json.decode((folder / SUMS).read_bytes(), type=dict[str, int])
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        if file.name in sums and sums[file.name] != crc_of(file):
            raise UserError(f"{file.name} is damaged")
        found |= {module_name(name): tensor for name, tensor in load_file(file).items()}
    return _complete(found, names)


def _received(invitation: Invitation, names: set[str]) -> dict[str, Any]:
    with receiving(invitation) as weights:
        return _complete(dict(weights), names)


def _complete(found: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    if missing := sorted(names - found.keys()):
        raise UserError(f"{missing[0]} and {len(missing) - 1} other tensors are missing")
    return {name: found[name].float() for name in names}

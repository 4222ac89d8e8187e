"""The event loop's side of the engine: messages in, messages out."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import torch
from anyio.lowlevel import checkpoint

from backends.engines.torch import Config
from backends.engines.torch.batch import Call
from backends.engines.torch.decoder import Decoder, Drawn, Event, Finished
from backends.engines.torch.model import CausalModel
from backends.engines.torch.thread import EngineThread
from backends.engines.torch.trial import check_bits, warm_up
from backends.models.loading import load_module, named_weights
from protocols.adapters import Host
from protocols.backend import PayloadPort
from protocols.errors import (
    BadPrompt,
    ConductorError,
    EngineBusy,
    EngineStale,
    InvariantError,
    PromptTooLong,
    Transient,
    UserError,
    WorkerLost,
)
from protocols.inference import Completion, EnginePort, EngineStatus, GenerateRequest, Generation, WeightsManifest
from protocols.messages import WeightVersion

CLOSE_S = 10.0
"""How long the thread may take to end; it ends between two tokens."""

NAME = "torch engine"

OnToken = Callable[[str, int, float], None]
"""Is told of a token as soon as it is drawn: whose it is, its id, its log-probability."""


@dataclass(eq=False)
class _Answer:
    """What is known on the event loop about a call that the thread has not reported gone."""

    done: "asyncio.Future[Generation]"
    on_token: OnToken | None
    completions: dict[str, Completion] = field(default_factory=dict)


class TorchEngine:
    """An engine over a decoder in a thread.

    Args:
        cfg: Bounds of the queue.
        decoder: Not used by anything else.
        model: The decoder's.
        payloads: Where staged weights lie.
    """

    def __init__(self, cfg: Config, decoder: Decoder, model: CausalModel, payloads: PayloadPort) -> None:
        self._cfg = cfg
        self._decoder = decoder
        self._model = model
        self._payloads = payloads
        self._answers: dict[Call, _Answer] = {}
        self._live: set[str] = set()
        self._loading = anyio.Lock()
        self._thread = EngineThread(NAME, decoder, on_events=self._take, on_lost=self._fail_all)

    async def status(self) -> EngineStatus:
        """Return what the engine is doing, without asking its thread."""
        await checkpoint()
        self._check_alive()
        return EngineStatus(
            version=self._decoder.version,
            live=len(self._live),
            context=self._model.context,
            paused=self._decoder.paused,
            held=max(0, len(self._live) - self._cfg.slots),
            allowed=self._cfg.slots,
        )

    async def generate(self, request: GenerateRequest, on_token: OnToken | None = None) -> Generation:
        """Join the running batch; the call is on its way before this first yields.

        Args:
            request: What is asked for.
            on_token: Called on the event loop for each token; all calls come before the return.
        """
        refusal = self._refusal(request)
        if refusal is not None:
            await checkpoint()
            raise refusal
        call = Call(request, watched=on_token is not None)
        answer = self._answers[call] = _Answer(done=asyncio.get_running_loop().create_future(), on_token=on_token)
        self._live.update(_ids(request))
        self._thread.post(lambda: self._decoder.join(call))
        try:
            return await answer.done
        finally:
            if call in self._answers:  # cancelled: it stays live until the thread says that it is gone
                self._thread.post(lambda: self._decoder.drop(call))

    async def abort(self, prefix: str) -> frozenset[str]:
        """End calls between two tokens; on return none of them is live."""
        return await self._thread.ask(lambda: self._decoder.abort(prefix))

    async def live_requests(self) -> frozenset[str]:
        """Return all ids that the thread has not reported gone."""
        await checkpoint()
        self._check_alive()
        return frozenset(self._live)

    async def load_weights(self, manifest: WeightsManifest) -> WeightVersion:
        """Fetch the weights and bind the model to them between two tokens, without copying them.

        Raises:
            InvariantError: They do not fit the model.
            Transient: The payload is not there.
            WorkerLost: The engine is gone.
        """
        await checkpoint()
        async with self._loading:  # two loads must not overtake each other between fetching and binding
            self._check_alive()
            if manifest.version == self._decoder.version:
                return manifest.version
            try:
                weights = await self._payloads.get(manifest.payload)
            except WorkerLost as exc:  # the payload is lost, not this engine
                raise Transient(f"weights {manifest.version} are not there: {exc.message}") from exc
            if not isinstance(weights, Mapping):
                raise InvariantError(f"{manifest.payload} holds no weights")
            return await self.swap(manifest.version, weights)

    async def swap(self, version: WeightVersion, weights: Mapping[str, Any] | None = None) -> WeightVersion:
        """Let weights that are at hand make the tokens from the next one on; None: those that the module holds now.

        Raises:
            InvariantError: They do not fit the model.
            WorkerLost: The engine is gone.
        """
        held = named_weights(self._model.module) if weights is None else weights
        return await self._thread.ask(lambda: self._decoder.swap(version, held))

    async def weights(self) -> Mapping[str, Any]:
        """Return those that the module holds: a swap must bring others of the same names, shapes and types."""
        await checkpoint()
        return named_weights(self._model.module)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token but the first under the weights served now, between two tokens."""
        return await self._thread.ask(lambda: self._decoder.score(token_ids))

    async def pause(self) -> None:
        """Stand still; on return no token is being made."""
        await self._thread.ask(self._decoder.pause)

    async def resume(self) -> None:
        """Go on."""
        await self._thread.ask(self._decoder.resume)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the thread until the block ends; whoever still waits then gets ``WorkerLost``."""
        self._thread.start()
        try:
            yield
        finally:
            await self._thread.close(CLOSE_S)  # noqa: ASYNC102 - shielded there, with this deadline

    def _refusal(self, request: GenerateRequest) -> ConductorError | None:
        names, live = _ids(request), len(self._live)
        if (lost := self._thread.lost) is not None:
            return lost
        if self._decoder.version is None:
            return EngineStale(engine=NAME)
        if not names or len(set(names)) < len(names) or not self._live.isdisjoint(names):
            return InvariantError("a request needs samples, and ids that no live request has")
        if live and live + len(names) > self._cfg.slots + self._cfg.max_waiting:
            return EngineBusy(engine=NAME, waiting=max(0, live - self._cfg.slots))
        return _fault(request, self._model)

    def _check_alive(self) -> None:
        lost = self._thread.lost
        if lost is not None:
            raise lost

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            answer = self._answers[event.call]
            if isinstance(event, Drawn):
                if answer.on_token is not None:
                    answer.on_token(event.request_id, event.token_id, event.logprob)
                continue
            if isinstance(event, Finished):
                name = event.completion.request_id
                answer.completions[name] = event.completion
                self._live.discard(name)
                if len(answer.completions) < len(event.call.request.samples):
                    continue
                if not answer.done.done():
                    answer.done.set_result(_in_order(event.call.request, answer.completions))
            elif event.error is not None and not answer.done.done():
                answer.done.set_exception(event.error)
            self._live.difference_update(_ids(event.call.request))
            del self._answers[event.call]

    def _fail_all(self, error: WorkerLost) -> None:
        for answer in self._answers.values():
            if not answer.done.done():
                answer.done.set_exception(WorkerLost(worker=error.worker, cause=error.cause))
        self._answers.clear()
        self._live.clear()


_: type[EnginePort] = TorchEngine


def _fault(request: GenerateRequest, model: CausalModel) -> ConductorError | None:
    sampling, prompt = request.sampling, request.prompt_ids
    if sampling.max_tokens < 1 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        return UserError(f"no tokens can be drawn by {sampling}")
    if not prompt or not all(0 <= token < model.vocabulary for token in prompt):
        return BadPrompt(f"a prompt is made of tokens from 0 to {model.vocabulary - 1}")
    if len(prompt) >= model.context:
        return PromptTooLong(tokens=len(prompt), context=model.context)
    return None


def _ids(request: GenerateRequest) -> list[str]:
    return [sample.request_id for sample in request.samples]


def _in_order(request: GenerateRequest, completions: Mapping[str, Completion]) -> Generation:
    return Generation(completions=tuple(completions[name] for name in _ids(request)))


@asynccontextmanager
async def open_engine(cfg: Config, host: Host) -> AsyncGenerator[TorchEngine]:
    """Build and warm up the model in a thread, then run the engine until the block ends.

    Raises:
        UserError: As ``backends.engines.torch.open`` says.
    """
    model = await anyio.to_thread.run_sync(_build, cfg, host)
    decoder = Decoder(model, slots=cfg.slots, deterministic=cfg.deterministic)
    engine = TorchEngine(cfg, decoder, model, host.payloads)
    async with engine.running():
        yield engine


def _build(cfg: Config, host: Host) -> CausalModel:
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    model = CausalModel(load_module(host.site), context=cfg.context, deterministic=cfg.deterministic)
    warm_up(model)
    if cfg.deterministic:
        check_bits(model)
    return model

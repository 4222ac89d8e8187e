"""``EnginePort`` over a server of its own."""

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from backends.engines._http.calls import Call, Calls, ids_of
from backends.engines._http.cargo import Shipping
from backends.engines._http.connection import ServerRefused, refusals_as_transient
from backends.engines._http.dialect import Answered, Dialect
from backends.engines._http.sending import Sending
from backends.engines._http.trust import Unvouched
from backends.engines._http.weights import ServerWeights
from protocols.aio import open_tasks, owned
from protocols.backend import PayloadPort
from protocols.errors import (
    Aborted,
    BadPrompt,
    ConductorError,
    EngineBusy,
    EngineStale,
    InvariantError,
    PromptTooLong,
    Transient,
    UserError,
)
from protocols.inference import (
    Completion,
    EnginePort,
    EngineStatus,
    GenerateRequest,
    Generation,
    Sampling,
    WeightsManifest,
)
from protocols.messages import WeightVersion

log = structlog.get_logger(__name__)

HANG_UP_S = 3.0
"""When a server does not end what was aborted, the connection is closed, which ends it too, but says nothing of it."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class HttpEngine:
    """One server, which nobody else loads weights into.

    A sample is one request of its own, under its own id and seed. An abort is over when the server has answered every
    request that it hit, and counts no more requests than are awaited; not when it has answered the abort.

    Args:
        dialect: The server's interface.
        weights: What it serves.
        sending: How many requests it has.
        name: In errors.
        context: Most tokens of prompt and completion.
        tasks: Own the requests, which outlive who waits for them until the server has ended them.
    """

    def __init__(
        self,
        dialect: Dialect,
        weights: ServerWeights,
        sending: Sending,
        *,
        name: str,
        context: int,
        tasks: TaskGroup,
    ) -> None:
        self._dialect = dialect
        self._weights = weights
        self._name = name
        self._context = context
        self._tasks = tasks
        self._calls = Calls()
        self._sending = sending

    async def status(self) -> EngineStatus:
        """Ask the server; labels that this engine did not give it, or did not see held, are no version."""
        await checkpoint()
        state, version = await self._weights.state()
        return EngineStatus(
            version=version,
            live=len(self._calls.live),
            context=self._context,
            paused=state.paused,
            held=self._sending.held,
            allowed=self._sending.allowed,
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Send each sample as a request of its own; they share what the server computes of their prompt."""
        refusal = self._refusal(request)
        if refusal is not None:
            await checkpoint()
            raise refusal
        call = self._calls.begin(request)
        self._tasks.start_soon(owned, "request", self._work, call, name=f"request {call.ids[0]}")
        try:
            await call.ended.wait()
        finally:
            if not call.ended.is_set():
                self._calls.drop(call)
                self._tasks.start_soon(owned, "drop", self._end, [call], name=f"drop {call.ids[0]}")
        if call.failure is not None:
            raise call.failure
        if call.generation is None:
            raise InvariantError(f"{self._name}: {call.ids[0]} ended without an outcome")
        return call.generation

    async def abort(self, prefix: str) -> frozenset[str]:
        """End requests, and wait for the server's answer to each."""
        hit = self._calls.abort(prefix)
        await checkpoint()
        await self._end(hit)
        return frozenset(ids_of(hit))

    async def live_requests(self) -> frozenset[str]:
        """Return what the server has not answered; of broken connections, by how many requests it says it has."""
        await checkpoint()
        if self._calls.unheard:
            await self._counted()
        return self._calls.live

    async def load_weights(self, manifest: WeightsManifest) -> WeightVersion:
        """Let the server load the weights, and see that it holds them."""
        await checkpoint()
        await self._weights.load(manifest)
        return manifest.version

    async def pause(self) -> None:
        """Let the server stand still, and keep what runs."""
        with refusals_as_transient(f"{self._name} does not pause"):
            await self._dialect.pause()
        self._weights.stands()

    async def resume(self) -> None:
        """Let the server go on, and see whether it holds what was loaded meanwhile; what nobody waits for ends first.

        Raises:
            Transient: It does not.
        """
        with refusals_as_transient(f"{self._name} does not go on"):
            await self._dialect.resume()
        self._weights.paused = False
        for call in self._calls.dropped:
            await call.ended.wait()
        await self._weights.prove()

    def _refusal(self, request: GenerateRequest) -> ConductorError | None:
        ids = [sample.request_id for sample in request.samples]
        if self._weights.label is None:
            return EngineStale(engine=self._name)
        if not ids or self._calls.collides(ids):
            return InvariantError("a request needs samples, and ids that no live request has")
        if not request.prompt_ids:
            return BadPrompt("a prompt needs a token")
        if len(request.prompt_ids) >= self._context:
            return PromptTooLong(tokens=len(request.prompt_ids), context=self._context)
        if (why := self._dialect.refusal(request)) is not None:
            return UserError(f"{self._name}: {why}")
        return self._calls.refusal(request)

    async def _work(self, call: Call) -> None:
        """Play a call to its end, and tell what became of it."""
        try:
            with call.scope:
                await self._play(call)
        finally:
            if call.generation is None and call.failure is None:
                call.failure = self._ended(call)
            self._calls.end(call)

    async def _play(self, call: Call) -> None:
        answers: dict[str, Answered] = {}
        request = _fitting(call.request, self._context)

        async def play(index: int) -> None:
            sample = request.samples[index]
            undo = partial(self._dialect.abort, [sample.request_id])
            try:
                async with self._sending.turn(call) as sent:
                    if sent:
                        answers[sample.request_id] = await self._dialect.generate(sample, request, self._salt(), undo)
                call.heard.add(sample.request_id)
            except ServerRefused as exc:
                call.failure = call.failure or self._refused(exc)
                call.heard.add(sample.request_id)
            except ConductorError as exc:
                call.failure = call.failure or exc
            if call.failure is not None:
                tasks.cancel_scope.cancel()  # they have one fate

        async with anyio.create_task_group() as tasks:
            for index in range(len(request.samples)):
                tasks.start_soon(owned, "sample", play, index, name=f"sample {request.samples[index].request_id}")
        if call.failure is None and len(answers) < len(call.ids):
            call.failure = self._ended(call)
        if call.failure is None:
            await self._conclude(call, [answers[name] for name in call.ids])

    def _salt(self) -> str:
        """Return what the weights that the server has now are called: prompts computed by others are not to be used."""
        if self._weights.label is None:
            raise EngineStale(engine=self._name)
        return self._weights.label

    async def _conclude(self, call: Call, answers: Sequence[Answered]) -> None:
        if call.prefix is not None or any(answer.finish == "abort" for answer in answers):
            call.failure = self._ended(call)
            return
        try:
            completions = [await self._completion(name, answer) for name, answer in zip(call.ids, answers, strict=True)]
        except Unvouched as exc:
            log.warning("engine.unvouched_tokens", engine=self._name, why=str(exc))
            call.failure = EngineStale(engine=self._name)
        except InvariantError as exc:
            call.failure = exc
        else:
            call.generation = Generation(completions=tuple(completions))

    async def _completion(self, name: str, answer: Answered) -> Completion:
        segments = await self._weights.trust.segments(tuple(answer.spans))
        count = len(answer.token_ids)
        if len(answer.logprobs) != count or sum(segment.count for segment in segments) != count:
            raise InvariantError(f"{self._name} accounts for other than the {count} tokens of {name}")
        if not all(logprob <= 0 and math.isfinite(logprob) for logprob in answer.logprobs):
            raise InvariantError(f"{self._name} gave {name} log-probabilities that are none")
        return Completion(
            request_id=name,
            token_ids=tuple(answer.token_ids),
            logprobs=tuple(answer.logprobs),
            segments=segments,
            finish="stop" if answer.finish == "stop" else "length",
        )

    async def _end(self, calls: Sequence[Call]) -> None:
        """Ask for the end of calls until the server has answered each, or hang up; then see that it counts them out."""
        since, pause = anyio.current_time(), _FIRST_PAUSE_S
        while running := [call for call in calls if not call.ended.is_set()]:
            late = anyio.current_time() - since > HANG_UP_S
            if late:
                log.error("engine.abort_unanswered", engine=self._name, requests=len(ids_of(running)))
            for call in running:
                call.withdraw()
                if late or call.answered:  # an answer may wait for the verdict on the weights that made it
                    call.scope.cancel()
            with refusals_as_transient(f"{self._name} does not abort"):
                await self._dialect.abort(ids_of(running))
            with anyio.move_on_after(pause):  # it may have overtaken a request: then the next one hits
                for call in running:
                    await call.ended.wait()
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        while calls and not await self._counted():  # noqa: ASYNC110 - a server tells nobody when it has
            await anyio.sleep(_LONGEST_PAUSE_S)

    async def _counted(self) -> bool:
        """Return whether the server itself says that it runs no more than those whose answers are awaited."""
        with refusals_as_transient(f"{self._name} does not say what it runs"):
            load = await self._dialect.load()
        if load.requests > self._calls.awaited - self._sending.held:
            return False
        self._calls.forget_unheard()
        return True

    def _ended(self, call: Call) -> ConductorError:
        if call.prefix is not None:
            return Aborted(prefix=call.prefix)
        return Transient(f"{self._name} ended {call.ids[0]}, and nobody had asked it to")

    def _refused(self, refusal: ServerRefused) -> ConductorError:
        if refusal.status in _BUSY:
            return EngineBusy(engine=self._name, waiting=self._calls.awaited)
        if refusal.status == HTTPStatus.NOT_FOUND:
            return UserError(f"{self._name} does not have the interface: {refusal}")
        if refusal.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return BadPrompt(f"{self._name} refused it: {refusal.message}")
        return Transient(f"{self._name} failed: {refusal}")


_: type[EnginePort] = HttpEngine


def _fitting(request: GenerateRequest, context: int) -> GenerateRequest:
    """Return a request for no more tokens than the context has room for: servers refuse one for more."""
    room = min(request.sampling.max_tokens, context - len(request.prompt_ids))
    sampling: Sampling = msgspec.structs.replace(request.sampling, max_tokens=room)
    return msgspec.structs.replace(request, sampling=sampling)


@asynccontextmanager
async def open_engine(
    dialect: Dialect, payloads: PayloadPort, shipping: Shipping, *, name: str, tolerance: float, in_flight: int
) -> AsyncGenerator[HttpEngine]:
    """Open the port over a server that runs; what it works on when the block ends is left to its own devices."""
    context = await dialect.context()
    weights = ServerWeights(dialect, payloads, shipping, name=name, tolerance=tolerance)
    sending = Sending(dialect, in_flight, lambda: weights.label is not None and not weights.paused)
    async with open_tasks() as tasks:
        tasks.start_soon(owned, "load", sending.watch, name=f"load of {name}")
        yield HttpEngine(dialect, weights, sending, name=name, context=context, tasks=tasks)
        tasks.cancel_scope.cancel()

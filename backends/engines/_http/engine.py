"""``EnginePort`` over a server of its own."""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

import anyio
import anyio.to_thread
import msgspec
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from backends.engines._http.calls import Call, Calls, ids_of
from backends.engines._http.connection import ServerRefused
from backends.engines._http.dialect import Answered, Dialect
from backends.engines._http.files import WeightFiles
from backends.engines._http.trust import Trust, Unvouched
from protocols.aio import bounded_shield, open_tasks, owned
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
    WorkerLost,
)
from protocols.inference import (
    Completion,
    EnginePort,
    EngineStatus,
    GenerateRequest,
    Generation,
    Probe,
    Sampling,
    WeightsManifest,
)
from protocols.messages import WeightVersion

log = structlog.get_logger(__name__)

HANG_UP_S = 3.0
"""When a server does not end what was aborted, the connection is closed, which ends it too, but says nothing of it."""

RESUME_S = 10.0
"""How long a server may take to go on after weights were loaded, whatever became of that."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class HttpEngine:
    """One server, which nobody else loads weights into.

    A sample is one request of its own, under its own id and seed. Its answer is the proof that it runs no more: an
    abort is over when the server has answered every request that it hit, not when it has answered the abort.

    Args:
        dialect: The server's interface.
        payloads: Where staged weights lie.
        files: Where the server reads them.
        name: In errors.
        context: Most tokens of prompt and completion.
        tolerance: By how much a log-probability of the probe may differ from the trainer's.
        tasks: Own the requests, which outlive who waits for them until the server has ended them.
    """

    def __init__(
        self,
        dialect: Dialect,
        payloads: PayloadPort,
        files: WeightFiles,
        *,
        name: str,
        context: int,
        tolerance: float,
        tasks: TaskGroup,
    ) -> None:
        self._dialect = dialect
        self._payloads = payloads
        self._files = files
        self._name = name
        self._context = context
        self._tolerance = tolerance
        self._tasks = tasks
        self._calls = Calls()
        self._trust = Trust()
        self._loading = anyio.Lock()
        self._label: str | None = None
        self._unproved: tuple[str, WeightsManifest] | None = None
        self._paused = False

    async def status(self) -> EngineStatus:
        """Ask the server; labels that this engine did not give it, or did not see held, are no version."""
        await checkpoint()
        try:
            state = await self._dialect.state()
        except ServerRefused as exc:
            raise self._transient("says nothing of itself", exc) from exc
        version = self._trust.version(state.label)
        if state.label != self._label and not self._loading.locked():
            self._label = None
        return EngineStatus(
            version=version if state.label == self._label else None,
            live=len(self._calls.live),
            context=self._context,
            paused=state.paused,
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Send each sample as a request of its own; they share what the server computes of their prompt."""
        refusal = self._refusal(request)
        if refusal is not None:
            await checkpoint()
            raise refusal
        assert self._label is not None
        call = self._calls.begin(request)
        self._tasks.start_soon(owned, "request", self._work, call, self._label, name=f"request {call.ids[0]}")
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
        await self._ask_for_unheard()
        return self._calls.live

    async def load_weights(self, manifest: WeightsManifest) -> WeightVersion:
        """Write the weights to a folder, let the server load them, and see that it holds them.

        Of a paused server that is seen when it goes on; until then nothing that it makes is given to anybody.
        """
        await checkpoint()
        async with self._loading:
            if await self._serves(manifest.version):
                return manifest.version
            try:
                weights = await self._payloads.get(manifest.payload)
            except WorkerLost as exc:  # the payload is lost, not this engine
                raise Transient(f"weights {manifest.version} are not there: {exc.message}") from exc
            if not isinstance(weights, Mapping):
                raise InvariantError(f"{manifest.payload} holds no weights")
            label = self._trust.attempt(manifest.version)
            try:
                await self._exchange(label, weights)
                self._unproved = (label, manifest)
                if not self._paused:
                    await self._prove()
            except BaseException:
                self._trust.refuse(label)
                raise
            return manifest.version

    async def pause(self) -> None:
        """Let the server stand still, and keep what runs."""
        await self._said(self._dialect.pause, "does not pause")
        self._paused = True

    async def resume(self) -> None:
        """Let the server go on, and see whether it holds what was loaded meanwhile; what nobody waits for ends first.

        Raises:
            Transient: It does not.
        """
        await self._said(self._dialect.resume, "does not go on")
        self._paused = False
        for call in self._calls.dropped:
            await call.ended.wait()
        if self._unproved is not None:
            await self._prove()

    def _refusal(self, request: GenerateRequest) -> ConductorError | None:
        ids = [sample.request_id for sample in request.samples]
        if self._label is None:
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

    async def _work(self, call: Call, salt: str) -> None:
        """Play a call to its end, and tell what became of it."""
        try:
            with call.scope:
                await self._play(call, salt)
        finally:
            if call.generation is None and call.failure is None:
                call.failure = self._ended(call)
            self._calls.end(call)

    async def _play(self, call: Call, salt: str) -> None:
        answers: dict[str, Answered] = {}
        request = _fitting(call.request, self._context)

        async def play(index: int) -> None:
            sample = request.samples[index]
            try:
                answers[sample.request_id] = await self._dialect.generate(sample, request, salt)
            except ServerRefused as exc:
                call.failure = call.failure or self._refused(exc)
            except ConductorError as exc:
                call.failure = call.failure or exc
            if call.failure is not None:
                tasks.cancel_scope.cancel()  # they have one fate

        async with anyio.create_task_group() as tasks:
            for index in range(len(request.samples)):
                tasks.start_soon(owned, "sample", play, index, name=f"sample {request.samples[index].request_id}")
        if call.failure is None:
            call.answered = True
            await self._conclude(call, [answers[name] for name in call.ids])

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
        segments = await self._trust.segments(tuple(answer.spans))
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
        """Ask for the end of calls until the server has answered each, or, when it does not, hang up and count."""
        since, pause = anyio.current_time(), _FIRST_PAUSE_S
        while running := [call for call in calls if not call.ended.is_set()]:
            late = anyio.current_time() - since > HANG_UP_S
            if late:
                log.error("engine.abort_unanswered", engine=self._name, requests=len(ids_of(running)))
            for call in running:
                if late or call.answered:  # an answer may wait for the verdict on the weights that made it
                    call.scope.cancel()
            await self._said(partial(self._dialect.abort, ids_of(running)), "does not abort")
            with anyio.move_on_after(pause):  # it may have overtaken a request: then the next one hits
                for call in running:
                    await call.ended.wait()
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        await self._ask_for_unheard()
        while self._calls.unheard and any(name in self._calls.live for name in ids_of(calls)):
            await anyio.sleep(_LONGEST_PAUSE_S)
            await self._ask_for_unheard()

    async def _ask_for_unheard(self) -> None:
        """See whether the server has more requests than those whose answers are awaited."""
        if not self._calls.unheard:
            return
        try:
            running = await self._dialect.running()
        except ServerRefused as exc:
            raise self._transient("does not say what it runs", exc) from exc
        if running <= self._calls.heard:
            self._calls.forget_unheard()

    async def _serves(self, version: WeightVersion) -> bool:
        if self._label is None or self._trust.version(self._label) != version:
            return False
        status = await self.status()
        return status.version == version

    async def _exchange(self, label: str, weights: Mapping[str, object]) -> None:
        """Let the server load weights while it stands still; however that ends, it goes on as it was before."""
        try:
            folder = await anyio.to_thread.run_sync(self._files.write, label, weights)
        except OSError as exc:
            raise Transient(f"weights cannot be written for {self._name}: {exc}") from exc
        self._label = None
        try:
            if not self._paused:
                await self._said(self._dialect.pause, "does not pause")
            publish = partial(self._dialect.publish, str(folder), label, self._trust.loading)
            await self._said(publish, "did not load its weights")
        finally:
            if not self._paused:
                with bounded_shield(RESUME_S):
                    await self._said(self._dialect.resume, "does not go on")  # noqa: ASYNC102 - the shield has a deadline

    async def _prove(self) -> None:
        """See that the server holds what was loaded last: it makes of fixed tokens what the trainer makes of them.

        Raises:
            Transient: It holds something else; nothing that it made with it is given to anybody.
        """
        assert self._unproved is not None
        label, manifest = self._unproved
        if (probe := manifest.probe) is not None:
            apart = await self._distance(probe)
            if apart > self._tolerance:
                self._unproved = None
                self._trust.refuse(label)
                log.error("engine.weights_not_held", engine=self._name, version=manifest.version, apart=apart)
                raise Transient(
                    f"{self._name} accepted version {manifest.version} and does not hold it: of the probe's tokens its "
                    f"log-probabilities differ by {apart:.3g} from the trainer's, {self._tolerance:g} are allowed"
                )
        self._unproved = None
        self._trust.accept(label)
        self._label = label
        await anyio.to_thread.run_sync(self._files.keep, label)

    async def _distance(self, probe: Probe) -> float:
        """Return the largest difference between the server's log-probabilities and the trainer's."""
        try:
            scores = await self._dialect.score(probe.token_ids)
        except ServerRefused as exc:
            raise self._transient("cannot be probed", exc) from exc
        if len(scores) != len(probe.logprobs):
            return math.inf
        apart = [abs(found - wanted) for found, wanted in zip(scores, probe.logprobs, strict=True)]
        return math.inf if any(map(math.isnan, apart)) else max(apart, default=0.0)

    async def _said(self, ask: Callable[[], Awaitable[None]], what: str) -> None:
        """Await what a server is asked for; that it refuses is told as ``Transient``."""
        try:
            await ask()
        except ServerRefused as exc:
            raise self._transient(what, exc) from exc

    def _ended(self, call: Call) -> ConductorError:
        if call.prefix is not None:
            return Aborted(prefix=call.prefix)
        return Transient(f"{self._name} ended {call.ids[0]}, and nobody had asked it to")

    def _refused(self, refusal: ServerRefused) -> ConductorError:
        if refusal.status in _BUSY:
            return EngineBusy(engine=self._name, waiting=self._calls.heard)
        if refusal.status == HTTPStatus.NOT_FOUND:
            return UserError(f"{self._name} does not have the interface: {refusal}")
        if refusal.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return BadPrompt(f"{self._name} refused it: {refusal.message}")
        return self._transient("failed", refusal)

    def _transient(self, what: str, refusal: ServerRefused) -> Transient:
        return Transient(f"{self._name} {what}: {refusal}")


_: type[EnginePort] = HttpEngine


def _fitting(request: GenerateRequest, context: int) -> GenerateRequest:
    """Return a request for no more tokens than the context has room for: servers refuse one for more."""
    room = min(request.sampling.max_tokens, context - len(request.prompt_ids))
    sampling: Sampling = msgspec.structs.replace(request.sampling, max_tokens=room)
    return msgspec.structs.replace(request, sampling=sampling)


@asynccontextmanager
async def open_engine(
    dialect: Dialect, payloads: PayloadPort, files: WeightFiles, *, name: str, tolerance: float
) -> AsyncGenerator[HttpEngine]:
    """Open the port over a server that runs; what it works on when the block ends is left to its own devices."""
    context = await dialect.context()
    async with open_tasks() as tasks:
        yield HttpEngine(dialect, payloads, files, name=name, context=context, tolerance=tolerance, tasks=tasks)
        tasks.cancel_scope.cancel()

"""The engine over a server: what it promises where a connection, a server or an update goes wrong."""

import inspect
from collections.abc import Sequence
from typing import Any

import anyio
import httpx2
import pytest
from structlog.testing import capture_logs

from backends.engines._http import engine as http_engine
from backends.engines._http import weights
from backends.engines._http.connection import Connection, ServerRefused
from backends.engines._http.engine import HttpEngine
from backends.engines._http.vllm import VllmDialect
from protocols.errors import (
    Aborted,
    BadPrompt,
    ConductorError,
    DeadlineExceeded,
    EngineStale,
    InvariantError,
    Transient,
    UserError,
    WorkerLost,
)
from protocols.inference import GenerateRequest, Generation, SampleRequest, Sampling
from tests.support.http_engines import KINDS, Published, new_plain_client, open_attached, open_pair, open_test_server

pytestmark = pytest.mark.real_time

each_kind = pytest.mark.parametrize("kind", KINDS)


def asks(prefix: str, *, samples: int = 2, tokens: int = 8, **drawn: Any) -> GenerateRequest:
    names = [SampleRequest(request_id=f"{prefix}{index}/0", stream=f"0/0/{index}/0") for index in range(samples)]
    return GenerateRequest(
        prompt_ids=(1, 2, 3), samples=tuple(names), sampling=Sampling(max_tokens=tokens, **drawn), stop_token_ids=(11,)
    )


def tokens_of(generation: Generation) -> list[tuple[int, ...]]:
    return [one.token_ids for one in generation.completions]


async def undisturbed(kind: str) -> Generation:
    async with open_pair(kind) as (engine, published):
        await engine.load_weights(await published.manifest(0))
        return await engine.generate(asks("p.1/L0/0/", samples=3))


@each_kind
@pytest.mark.parametrize("fault", ["lost_request", "lost_reply"])
async def test_a_broken_connection_is_tried_again_once_and_gives_the_same_tokens(kind: str, fault: str) -> None:
    """A reply that is lost was made all the same: the same id and seed must not count, or draw, twice."""
    expected = await undisturbed(kind)
    async with open_pair(kind, faults=f"{fault}@Engine.generate#2") as (engine, published):
        await engine.load_weights(await published.manifest(0))
        generation = await engine.generate(asks("p.1/L0/0/", samples=3))
        assert tokens_of(generation) == tokens_of(expected)
        assert await engine.live_requests() == frozenset()


@each_kind
async def test_a_connection_that_breaks_twice_is_a_lost_server(kind: str) -> None:
    # the probe of the load is the first call, then come a request and its only repetition
    faults = "lost_request@Engine.generate#2;lost_request@Engine.generate#3"
    async with open_pair(kind, faults=faults) as (engine, published):
        await engine.load_weights(await published.manifest(0))
        with pytest.raises(WorkerLost):
            await engine.generate(asks("p.1/L0/0/", samples=1))
        assert await engine.live_requests() == frozenset()  # the server says that it runs nothing


@each_kind
async def test_a_server_that_does_not_hold_an_update_is_found_and_named(kind: str) -> None:
    """Tied embeddings, in vLLM: an update was answered with success, and the old weights went on generating."""
    async with open_pair(kind, unheld=2) as (engine, published):
        await engine.load_weights(await published.manifest(0))
        with pytest.raises(Transient, match=r"http://127\.0\.0\.1:\d+ accepted version 1 and does not hold it"):
            await engine.load_weights(await published.manifest(1))
        assert (await engine.status()).version is None
        with pytest.raises(EngineStale):
            await engine.generate(asks("p.1/L0/0/"))
        assert await engine.load_weights(await published.manifest(1)) == 1
        assert (await engine.status()).version == 1
        await engine.generate(asks("p.1/L0/0/"))


@each_kind
async def test_a_probe_that_is_never_answered_costs_a_load_and_not_the_engine(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hung once stood in the way of every later publish; that it went on was an error of a rule."""
    monkeypatch.setattr(weights, "PROBE_S", 0.5)
    async with open_pair(kind, faults="hang@Engine.generate#1") as (engine, published):
        manifest = await published.manifest(0)
        with pytest.raises(DeadlineExceeded, match="the probe of"):
            await engine.load_weights(manifest)
        await engine.resume()
        assert (await engine.status()).version is None
        assert await engine.load_weights(manifest) == 0


@each_kind
async def test_a_pause_that_comes_during_a_probe_does_not_wait_for_it(kind: str) -> None:
    """The server stands still, and answers it when it goes on: until then the load held whoever paused it for 120 s."""
    async with open_pair(kind, faults="hang@Engine.generate#1") as (engine, published):
        manifest = await published.manifest(0)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.load_weights, manifest)
                while engine._weights._probing is None:  # noqa: ASYNC110 - what a server is asked rings no bell
                    await anyio.sleep(0.01)
                await engine.pause()
            assert (await engine.status()).version is None
            await engine.resume()
        assert (await engine.status()).version == 0


@each_kind
async def test_a_server_that_was_not_heard_to_go_on_is_not_probed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still, and would never answer: the load fails, and the next one finds it."""
    monkeypatch.setattr(weights, "RESUME_S", 0.5)
    async with open_pair(kind, faults="hang@Engine.resume#1") as (engine, published):
        manifest = await published.manifest(0)
        with pytest.raises(DeadlineExceeded, match="the resume of"):
            await engine.load_weights(manifest)
        assert (await engine.status()).version is None
        assert await engine.load_weights(manifest) == 0
        await engine.generate(asks("p.1/L0/0/"))


@each_kind
async def test_nothing_made_by_weights_that_were_not_held_is_given_to_anybody(kind: str) -> None:
    """A request that ran across the update carries tokens of weights that have no name."""
    async with open_pair(kind, unheld=2) as (engine, published):
        await engine.load_weights(await published.manifest(0))
        await engine.pause()
        outcomes: list[ConductorError | Generation] = []

        async def generate() -> None:
            try:
                outcomes.append(await engine.generate(asks("p.1/L0/0/", samples=1)))
            except ConductorError as exc:
                outcomes.append(exc)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate)
            await anyio.wait_all_tasks_blocked()
            assert await engine.load_weights(await published.manifest(1)) == 1
            with pytest.raises(Transient, match="does not hold it"):
                await engine.resume()  # only now can the server be asked
        assert [type(outcome) for outcome in outcomes] == [EngineStale]


@each_kind
async def test_each_span_has_the_version_that_the_server_tells(kind: str) -> None:
    """AReaL PR#1569, vllm#54443: who made a token was guessed by the client (I29, I30)."""
    async with open_pair(kind) as (engine, published):
        await engine.load_weights(await published.manifest(0))
        found: list[Generation] = []

        async def generate() -> None:
            found.append(await engine.generate(asks("p.1/L0/0/", samples=4, tokens=60)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate)
            await anyio.wait_all_tasks_blocked()
            for version in (1, 2):
                await engine.load_weights(await published.manifest(version))
        for one in found[0].completions:
            assert [segment.version for segment in one.segments] == sorted({one.version for one in one.segments})
            assert sum(segment.count for segment in one.segments) == len(one.token_ids)


@each_kind
async def test_a_server_that_begins_anew_serves_nothing_until_it_has_loaded(kind: str) -> None:
    """Late join: another process at the same address has the weights, and the label, that servers begin with."""
    published = Published()
    async with open_test_server(kind) as url, open_attached(kind, url, published) as engine:
        await engine.load_weights(await published.manifest(0))
        assert (await engine.status()).version == 0
        async with new_plain_client(url) as client:
            await client.post("/update_weight_version", json={"new_version": "default"})
        assert (await engine.status()).version is None
        with pytest.raises(EngineStale):
            await engine.generate(asks("p.1/L0/0/"))
        assert await engine.load_weights(await published.manifest(0)) == 0
        assert (await engine.status()).version == 0


@each_kind
async def test_labels_of_another_run_are_not_taken_for_ones_own(kind: str) -> None:
    """A server outlives a run; its version 0 of yesterday is not today's."""
    published = Published()
    async with open_test_server(kind) as url:
        async with open_attached(kind, url, published) as engine:
            await engine.load_weights(await published.manifest(0))
        async with open_attached(kind, url, published) as other:
            assert (await other.status()).version is None
            with pytest.raises(EngineStale):
                await other.generate(asks("p.1/L0/0/"))


@each_kind
async def test_200_requests_aborted_by_prefix_leave_none_running(kind: str) -> None:
    async with open_pair(kind) as (engine, published):
        await engine.load_weights(await published.manifest(0))
        await engine.pause()
        errors: list[ConductorError] = []

        async def generate(lease: int) -> None:
            try:
                await engine.generate(asks(f"p.1/L{lease}/0/", samples=4))
            except ConductorError as exc:
                errors.append(exc)

        async with anyio.create_task_group() as tasks:
            for lease in range(50):
                tasks.start_soon(generate, lease)
            await anyio.wait_all_tasks_blocked()
            with capture_logs() as told:
                assert len(await engine.abort("p.1/")) == 200
            assert "engine.abort_unanswered" not in {line["event"] for line in told}  # by name, not by hanging up
            assert await engine.live_requests() == frozenset()
        assert {type(error) for error in errors} == {Aborted}
        assert (await engine._dialect.load()).requests == 0
        await engine.resume()


class Misnaming(VllmDialect):
    """Asks for aborts by a form of the ids that the server does not know; it is answered with success."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, "raw")

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Abort nothing."""
        await super().abort([f"cmpl-{name}" for name in request_ids])


async def test_an_abort_that_is_answered_and_ends_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM answers an abort of an id that it does not know with 200 and ``aborted: 1`` (I46)."""
    monkeypatch.setattr(http_engine, "HANG_UP_S", 0.1)
    published = Published()
    async with open_test_server("vllm") as url, open_attached("vllm", url, published, Misnaming) as engine:
        await engine.load_weights(await published.manifest(0))
        await engine.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_aborted, engine)
            await anyio.wait_all_tasks_blocked()
            assert await engine.abort("p.1/L0/") == {"p.1/L0/0/0/0", "p.1/L0/0/1/0"}
            assert await engine.live_requests() == frozenset()
            assert (await engine._dialect.load()).requests == 0  # hanging up ended them
        await engine.resume()


async def _aborted(engine: HttpEngine) -> None:
    with pytest.raises(Aborted):
        await engine.generate(asks("p.1/L0/0/"))


@each_kind
async def test_weights_of_another_model_leave_the_old_ones_and_say_why(kind: str) -> None:
    async with open_pair(kind) as (engine, published):
        await engine.load_weights(await published.manifest(0))
        manifest = await published.manifest(1)
        weights: Any = await published.payloads.get(manifest.payload)
        await published.payloads.put(manifest.payload, dict(list(weights.items())[1:]))
        with pytest.raises(Transient, match="tensors are missing"):
            await engine.load_weights(manifest)
        assert (await engine.status()).version is None
        assert not (await engine.status()).paused


@each_kind
async def test_what_the_server_refuses_is_told_as_what_it_is(kind: str) -> None:
    async with open_pair(kind) as (engine, published):
        await engine.load_weights(await published.manifest(0))
        strange = GenerateRequest(
            prompt_ids=(1, 4711), samples=asks("p.1/L0/0/").samples, sampling=Sampling(max_tokens=4)
        )
        with pytest.raises(BadPrompt, match="tokens from 0 to 11"):
            await engine.generate(strange)
        with pytest.raises(InvariantError):
            await engine.generate(GenerateRequest(prompt_ids=(1,), samples=(), sampling=Sampling(max_tokens=4)))


async def test_log_probabilities_that_would_be_of_other_logits_are_refused() -> None:
    """vLLM's default is the raw logits: at temperature 0.7 they are another policy's than the one that drew."""
    async with open_pair("vllm") as (engine, published):
        await engine.load_weights(await published.manifest(0))
        with pytest.raises(UserError, match="processed_logprobs"):
            await engine.generate(asks("p.1/L0/0/", temperature=0.7))


def _transport_errors() -> list[type[Exception]]:
    found = [kind for _, kind in inspect.getmembers(httpx2, inspect.isclass) if issubclass(kind, httpx2.TransportError)]
    assert len(found) > 10
    return found


@pytest.mark.parametrize("error", _transport_errors())
async def test_no_foreign_exception_leaves_a_connection(error: type[Exception]) -> None:
    """Style rule 11: each foreign exception is mapped."""

    def fail(request: httpx2.Request) -> httpx2.Response:
        raise error("planted")

    async with httpx2.AsyncClient(base_url="http://server", transport=httpx2.MockTransport(fail)) as client:
        with pytest.raises(WorkerLost, match="planted"):
            await Connection(client, "server").get_text("/health")


async def test_answers_that_are_no_answers_are_told() -> None:
    """verl-omni#433: an error text came back as a normal answer (I11)."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(500 if request.url.path == "/broken" else 200, text="Internal Server Error")

    async with httpx2.AsyncClient(base_url="http://server", transport=httpx2.MockTransport(answer)) as client:
        connection = Connection(client, "server")
        with pytest.raises(ServerRefused, match="HTTP 500: Internal Server Error"):
            await connection.get_text("/broken")
        with pytest.raises(Transient, match="cannot be understood"):
            await connection.get("/odd", dict[str, str])


async def test_a_call_after_the_end_finds_the_engine_lost() -> None:
    """A keeper may come late to an engine that is being ended: no foreign exception crosses the port."""
    async with new_plain_client("http://127.0.0.1:1") as client:
        connection = Connection(client, "server")
    with pytest.raises(WorkerLost, match="it was ended"):
        await connection.get_text("/health")

"""What waits for its turn: its order, its end, and how a server's own reports change how many it has."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from backends.engines._http import sending
from backends.engines._http.connection import Connection
from backends.engines._http.dialect import Answered
from backends.engines._http.engine import HttpEngine
from backends.engines._http.vllm import VllmDialect
from protocols.errors import Aborted, ConductorError
from protocols.inference import GenerateRequest, SampleRequest, Sampling
from tests.support.http_engines import KINDS, Published, open_attached, open_test_server

pytestmark = pytest.mark.real_time

each_kind = pytest.mark.parametrize("kind", KINDS)


def asks(lease: int, *, samples: int = 4, tokens: int = 8) -> GenerateRequest:
    names = [
        SampleRequest(request_id=f"p.1/L{lease}/0/{index}/0", stream=f"{lease}/{index}") for index in range(samples)
    ]
    return GenerateRequest(prompt_ids=(1, 2, 3), samples=tuple(names), sampling=Sampling(max_tokens=tokens))


async def until_held(engine: HttpEngine, held: int) -> None:
    while (await engine.status()).held != held:  # noqa: ASYNC110 - a server tells nobody when it is sent something
        await anyio.sleep(0.01)


@each_kind
async def test_a_server_is_given_no_more_than_it_may_have_and_held_ones_end_at_once(kind: str) -> None:
    """What was never sent needs no answer of the server: it stands still here, and would give none."""
    published = Published()
    failed: list[ConductorError] = []

    async def generate(engine: HttpEngine, lease: int) -> None:
        try:
            await engine.generate(asks(lease))
        except ConductorError as exc:
            failed.append(exc)

    async with open_test_server(kind) as url, open_attached(kind, url, published, in_flight=4) as engine:
        await engine.load_weights(await published.manifest(0))
        await engine.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate, engine, 0)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(generate, engine, 1)
            await until_held(engine, 4)
            assert (await engine._dialect.load()).requests <= 4
            with anyio.fail_after(2):  # a request that was sent would be waited for until the connection is closed
                assert await engine.abort("p.1/L1/") == {f"p.1/L1/0/{index}/0" for index in range(4)}
            await engine.resume()
        assert [type(error) for error in failed] == [Aborted]
        assert (await engine.status()).held == 0


class Salted(VllmDialect):
    """Notes what each request's prompt may share its computation with."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, "raw")
        self.salts: list[str] = []

    async def generate(
        self, sample: SampleRequest, request: GenerateRequest, salt: str, undo: Callable[[], Awaitable[None]]
    ) -> Answered:
        """Send it."""
        self.salts.append(salt)
        return await super().generate(sample, request, salt, undo)


async def test_what_waited_shares_no_prompt_with_weights_that_are_gone() -> None:
    """The weights change while one of two waits for its turn: what the old ones computed of its prompt is not its."""
    published = Published()
    async with open_test_server("vllm") as url, open_attached("vllm", url, published, Salted, in_flight=1) as engine:
        await engine.load_weights(await published.manifest(0))
        before = engine._weights.label
        await engine.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.generate, asks(0, samples=2))
            await until_held(engine, 1)
            await engine.load_weights(await published.manifest(1))
            await engine.resume()
        assert isinstance(engine._dialect, Salted)
        assert engine._dialect.salts == [before, engine._weights.label]
        assert before != engine._weights.label


@each_kind
async def test_a_server_that_queues_is_given_less(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue G: concurrency follows what the server reports. It computes two at once; all are answered."""
    monkeypatch.setattr(sending, "LOOK_EVERY_S", 0.02)
    published = Published()
    async with (
        open_test_server(kind, engine={"slots": 2}) as url,
        open_attached(kind, url, published, in_flight=16) as engine,
    ):
        await engine.load_weights(await published.manifest(0))
        assert (await engine.status()).allowed == 16
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for lease in range(6):
                    tasks.start_soon(engine.generate, asks(lease, tokens=40))
                while ((await engine.status()).allowed or 0) > 4:  # noqa: ASYNC110 - as above
                    await anyio.sleep(0.01)

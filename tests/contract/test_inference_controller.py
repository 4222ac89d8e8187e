"""What every inference controller keeps to, over scripted engines."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import anyio
import pytest

from backends.engines.pool import open_pool
from protocols.errors import Aborted, EngineStale
from protocols.inference import (
    GenerateRequest,
    InferenceControllerPort,
    SampleRequest,
    Sampling,
    WeightsManifest,
)
from protocols.messages import PayloadRef, WeightVersion, WorkerId
from protocols.wire import over_codec
from tests.support.scripted.engine import ScriptedEngine
from tests.support.scripted.inference import ScriptedInference

MEMBERS = (WorkerId("rollout/0"), WorkerId("rollout/1"))


class Made(NamedTuple):
    """A controller and the engines behind it."""

    controller: InferenceControllerPort
    engines: dict[WorkerId, ScriptedEngine]


OpenController = Callable[[], AbstractAsyncContextManager[Made]]


@asynccontextmanager
async def _pool() -> AsyncGenerator[Made]:
    engines = {name: ScriptedEngine(name=name) for name in MEMBERS}
    async with open_pool(engines) as pool:
        yield Made(pool, engines)


@asynccontextmanager
async def _scripted() -> AsyncGenerator[Made]:
    controller = ScriptedInference(MEMBERS)
    yield Made(controller, controller.engines)


def _wired(opened: OpenController) -> OpenController:
    @asynccontextmanager
    async def open_wired() -> AsyncGenerator[Made]:
        async with opened() as made:
            yield Made(over_codec(InferenceControllerPort, made.controller), made.engines)

    return open_wired


@pytest.fixture(
    params=[
        pytest.param(_pool, id="pool"),
        pytest.param(_wired(_pool), id="pool-wired"),
        pytest.param(_scripted, id="scripted"),
        pytest.param(_wired(_scripted), id="scripted-wired"),
    ]
)
def open_controller(request: pytest.FixtureRequest) -> OpenController:
    return request.param


def weights(version: int) -> WeightsManifest:
    payload = PayloadRef(owner=f"weights/{version}", key="parameters")
    return WeightsManifest(version=WeightVersion(version), payload=payload, tensors=1, size_bytes=1)


def asks(prefix: str, *, samples: int = 2, max_tokens: int = 8) -> GenerateRequest:
    return GenerateRequest(
        prompt_ids=(1, 2, 3),
        samples=tuple(
            SampleRequest(request_id=f"{prefix}{index}/0", stream=f"0/0/{index}/0") for index in range(samples)
        ),
        sampling=Sampling(max_tokens=max_tokens),
    )


async def test_nothing_is_served_before_a_publish(open_controller: OpenController) -> None:
    async with open_controller() as (controller, _):
        assert await controller.endpoint()
        assert await controller.versions() == dict.fromkeys(MEMBERS)
        with pytest.raises(EngineStale):
            await controller.generate(asks("p.1/L0/0/"))
        readiness = await controller.prepare_rollout()
        assert readiness.members == frozenset()
        assert readiness.stale == set(MEMBERS)


async def test_every_member_confirms_a_publish(open_controller: OpenController) -> None:
    async with open_controller() as (controller, _):
        receipt = await controller.publish(weights(3))
        assert receipt.version == 3
        assert receipt.confirmed == set(MEMBERS)
        assert receipt.stale == frozenset()
        assert await controller.versions() == dict.fromkeys(MEMBERS, 3)
        assert (await controller.prepare_rollout()).members == set(MEMBERS)


async def test_publishing_is_idempotent(open_controller: OpenController) -> None:
    async with open_controller() as (controller, engines):
        first = await controller.publish(weights(1))
        assert await controller.publish(weights(1)) == first
        assert [engine.loaded for engine in engines.values()] == [[1], [1]]


async def test_tokens_carry_the_version_that_made_them(open_controller: OpenController) -> None:
    """I30: clients had to guess which weights made a token; the engine says it with each completion."""
    async with open_controller() as (controller, _):
        for version in (1, 2):
            await controller.publish(weights(version))
            generation = await controller.generate(asks(f"p.1/L{version}/0/"))
            assert {one.version for done in generation.completions for one in done.segments} == {version}


async def test_an_abort_reaches_every_engine(open_controller: OpenController) -> None:
    async with open_controller() as (controller, engines):
        await controller.publish(weights(0))
        errors: list[Aborted] = []

        async def collect(prefix: str) -> None:
            try:
                await controller.generate(asks(prefix, max_tokens=1000))
            except Aborted as exc:
                errors.append(exc)

        async with anyio.create_task_group() as tasks:
            for lease in range(4):
                tasks.start_soon(collect, f"p.1/L1/{lease}/")
                await anyio.sleep(0.01)
            tasks.start_soon(collect, "p.1/L17/0/")
            await anyio.sleep(0.1)
            assert all([await engine.live_requests() for engine in engines.values()]), "both engines work"
            report = await controller.abort("p.1/L1/")
            assert report.confirmed == {f"p.1/L1/{lease}/{sample}/0" for lease in range(4) for sample in range(2)}
            assert report.unconfirmed == frozenset()
            assert await controller.live_requests() == {"p.1/L17/0/0/0", "p.1/L17/0/1/0"}
            assert (await controller.abort("p.1/L1/")).confirmed == frozenset()
            await controller.abort("p.1/L17/")
        assert len(errors) == 5


async def test_an_abort_that_overtakes_its_request_wins(open_controller: OpenController) -> None:
    """verifiers PR#1035: the cancel came before the request was known, and the work ran on."""
    async with open_controller() as (controller, _):
        await controller.publish(weights(0))
        await controller.abort("p.1/L1/0/")
        with pytest.raises(Aborted):
            await controller.generate(asks("p.1/L1/0/"))
        await controller.generate(asks("p.1/L1/1/"))


async def test_a_cancelled_call_leaves_nothing_running(open_controller: OpenController) -> None:
    async with open_controller() as (controller, _):
        await controller.publish(weights(0))
        with anyio.move_on_after(0.05):
            await controller.generate(asks("p.1/L1/0/", max_tokens=1000))
        assert await controller.live_requests() == frozenset()


async def test_a_paused_controller_makes_no_tokens_until_it_is_resumed(open_controller: OpenController) -> None:
    async with open_controller() as (controller, engines):
        await controller.publish(weights(0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(controller.generate, asks("p.1/L1/0/"))
            await anyio.sleep(0.02)
            await controller.pause()
            await controller.pause()
            assert all([(await engine.status()).paused for engine in engines.values()])
            await anyio.sleep(10)
            assert len(await controller.live_requests()) == 2
            await controller.resume()
            await controller.resume()
        assert await controller.live_requests() == frozenset()


async def test_statuses_tell_of_every_member_and_change_nothing(open_controller: OpenController) -> None:
    async with open_controller() as (controller, engines):
        await controller.publish(weights(2))
        await controller.pause()
        found = await controller.statuses()
        assert found == {name: await engine.status() for name, engine in engines.items()}
        assert all(status is not None and status.version == 2 and status.paused for status in found.values())
        await controller.resume()


async def test_preparing_resumes_what_stands_still(open_controller: OpenController) -> None:
    """OpenRLHF#1164: engines stayed paused after a step that failed half-way (I22)."""
    async with open_controller() as (controller, engines):
        await controller.publish(weights(0))
        await controller.pause()
        readiness = await controller.prepare_rollout()
        assert readiness.members == set(MEMBERS)
        assert not any([(await engine.status()).paused for engine in engines.values()])
        await controller.generate(asks("p.1/L1/0/"))

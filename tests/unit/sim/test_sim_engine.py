"""The simulated engine: slots, pace, standing still, and which weights made which token."""

from collections.abc import Callable

import anyio
import pytest

from backends.sim.engine import EngineModel, SimEngine
from protocols.errors import Aborted
from protocols.inference import GenerateRequest, Generation, SampleRequest, Sampling, WeightsManifest
from protocols.messages import PayloadRef, WeightVersion


def manifest(version: int) -> WeightsManifest:
    ref = PayloadRef(owner="w/", key=str(version))
    return WeightsManifest(version=WeightVersion(version), payload=ref, tensors=1, size_bytes=8)


def asks(name: str, *samples: str) -> GenerateRequest:
    requests = tuple(SampleRequest(request_id=f"{name}/{one}", stream=one) for one in samples)
    return GenerateRequest(prompt_ids=(1,), samples=requests, sampling=Sampling(max_tokens=1 << 30))


async def served(**model: object) -> SimEngine:
    engine = SimEngine("e", EngineModel(work_s=float, **model))  # type: ignore[arg-type] - streams are the seconds
    await engine.load_weights(manifest(0))
    return engine


class Ends:
    """When requests ended."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.generations: dict[str, Generation] = {}

    async def note(self, engine: SimEngine, name: str, *samples: str) -> None:
        self.generations[name] = await engine.generate(asks(name, *samples))
        self.at[name] = round(anyio.current_time(), 5)


async def test_samples_beyond_the_slots_wait_their_turn() -> None:
    engine, ends = await served(slots=2), Ends()
    async with anyio.create_task_group() as tasks:
        for name, seconds in (("a", "3"), ("b", "1"), ("c", "1"), ("d", "1")):
            tasks.start_soon(ends.note, engine, name, seconds)
    assert ends.at == {"a": 3.0, "b": 1.0, "c": 2.0, "d": 3.0}
    assert engine.measure().busy_s == pytest.approx(6.0)


async def test_company_slows_everybody_down_alike() -> None:
    """Two samples at a slowdown of 0.5 take 1.5 times as long each, until one is done."""
    engine, ends = await served(slots=8, slowdown=0.5), Ends()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ends.note, engine, "a", "2")
        tasks.start_soon(ends.note, engine, "b", "4")
    assert ends.at == {"a": 3.0, "b": 5.0}
    usage = engine.measure()
    assert (usage.work_s, usage.busy_s) == (pytest.approx(6.0), pytest.approx(8.0))


async def test_a_request_ends_with_its_slowest_sample() -> None:
    engine, ends = await served(), Ends()
    await ends.note(engine, "a", "1", "5", "2")
    assert ends.at == {"a": 5.0}
    lengths = [len(one.token_ids) for one in ends.generations["a"].completions]
    assert lengths == [100, 500, 200]


async def test_tokens_are_stamped_by_the_weights_that_made_them() -> None:
    """I29: 4 s under version 0, then 1 s of standing still, then the rest under version 1."""
    engine, ends = await served(load_s=lambda _: 1.0), Ends()  # it is loaded at 1 s
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ends.note, engine, "a", "10")
        await anyio.sleep(4)
        await engine.load_weights(manifest(1))
    assert ends.at == {"a": 12.0}
    (completion,) = ends.generations["a"].completions
    assert [(one.version, one.count) for one in completion.segments] == [(0, 400), (1, 600)]
    assert engine.measure().standing_s == pytest.approx(2.0)


async def test_pausing_keeps_everything_and_costs_the_time() -> None:
    engine, ends = await served(), Ends()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ends.note, engine, "a", "3")
        await anyio.sleep(1)
        await engine.pause()
        await anyio.sleep(5)
        await engine.resume()
    assert ends.at == {"a": 8.0}


async def test_an_engine_that_hears_no_cancel_runs_on_until_it_is_aborted() -> None:
    """I46: over a network the caller's cancellation reaches nobody; only an abort ends the work."""
    engine = await served(hears_cancel=False)
    with anyio.move_on_after(1):
        await engine.generate(asks("a", "10", "20"))
    assert await engine.live_requests() == {"a/10", "a/20"}
    assert await engine.abort("a") == {"a/10", "a/20"}
    assert await engine.live_requests() == frozenset()


async def test_an_abort_frees_slots_for_those_who_wait() -> None:
    engine, ends = await served(slots=1), Ends()

    async def aborted() -> None:
        with pytest.raises(Aborted):
            await engine.generate(asks("a", "10"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(aborted)
        await anyio.sleep(1)
        tasks.start_soon(ends.note, engine, "b", "2")
        await anyio.sleep(2)
        await engine.abort("a")
    assert ends.at == {"b": 5.0}


@pytest.mark.parametrize("happens", [SimEngine.lose_weights, SimEngine.close])
async def test_a_lost_engine_makes_no_token(happens: Callable[[SimEngine], None]) -> None:
    engine = await served()
    with anyio.move_on_after(5) as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.generate, asks("a", "2"))
            await anyio.sleep(1)
            happens(engine)
    assert scope.cancelled_caught
    assert engine.measure().busy_s == pytest.approx(1.0)

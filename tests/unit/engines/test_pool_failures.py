"""What the pool knows after calls that failed, were cut, or came at the same time as others."""

import anyio
import pytest

from backends.engines.pool import open_pool
from protocols.errors import EngineBusy, Transient, WorkerLost
from protocols.inference import EngineStatus, WeightsManifest
from protocols.messages import WeightVersion
from tests.support.pools import A, B, C, asks, dead, open_pool_over, weights
from tests.support.scripted.engine import ScriptedEngine


async def test_a_lost_engine_is_out_before_anybody_probes_it() -> None:
    """I03: what it lost is tried again at once, and must not go to it again."""
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults.update({name: dead() for name in ("generate", "status", "load_weights")})
        with pytest.raises(WorkerLost):
            await pool.port.generate(asks("p.1/L0/0/"))
        assert await pool.port.versions() == {A: None, B: 0}
        for attempt in range(1, 4):
            await pool.port.generate(asks(f"p.1/L0/{attempt}/"))
        assert (await pool.port.prepare_rollout()).members == {B}


async def test_requests_that_failed_weigh_nothing() -> None:
    """I42: what was not taken back made an engine look busy for ever; here a drain would never end."""
    async with open_pool_over(A, mode="drain") as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults["generate"] = EngineBusy(engine=A, waiting=1)
        for lease in range(3):
            with pytest.raises(EngineBusy):
                await pool.port.generate(asks(f"p.1/L{lease}/0/"))
        with anyio.move_on_after(1.0):
            pool.engines[A].faults["generate"] = None
            await pool.port.generate(asks("p.1/L9/0/"))
        assert (await pool.port.publish(weights(1))).confirmed == {A}


async def test_whoever_watches_waits_for_no_engine_and_marks_none() -> None:
    async with open_pool_over(A, B, C) as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults["status"] = None
        pool.engines[B].faults["status"] = Transient("no answer")
        began = anyio.current_time()
        found = await pool.port.statuses()
        assert anyio.current_time() - began == pytest.approx(2.0)
        assert {name: status is not None for name, status in found.items()} == {A: False, B: False, C: True}
        assert set((await pool.port.versions()).values()) == {0}


class SlowEngine(ScriptedEngine):
    """Takes its time to load the versions in ``load_s``, and to tell what it served when it was asked."""

    def __init__(self, *, load_s: dict[int, float], status_s: float = 0.0) -> None:
        super().__init__()
        self.seconds = load_s
        self.status_s = status_s

    async def load_weights(self, manifest: WeightsManifest) -> WeightVersion:
        await anyio.sleep(self.seconds.get(manifest.version, 0.0))
        return await super().load_weights(manifest)

    async def status(self) -> EngineStatus:
        status = await super().status()
        await anyio.sleep(self.status_s)
        return status


async def test_the_later_of_two_publishes_is_what_is_served() -> None:
    """Two at a time would load over one another, and the slower one would win."""
    async with open_pool({A: SlowEngine(load_s={1: 5.0, 2: 1.0})}) as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.publish, weights(1))
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(pool.publish, weights(2))
        assert await pool.versions() == {A: 2}


async def test_a_probe_that_began_before_a_publish_says_nothing_of_it() -> None:
    """Its answer is of the weights before: the engine would count as restarted, and get no more requests."""
    engine = SlowEngine(load_s={}, status_s=1.0)
    async with open_pool({A: engine}) as pool:
        await pool.publish(weights(0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.prepare_rollout)
            await anyio.wait_all_tasks_blocked()
            await pool.publish(weights(1))
        assert await pool.versions() == {A: 1}


async def test_requests_pass_whatever_resuming_ran_into() -> None:
    """I22: the gate stayed shut after an error that nobody foresaw."""

    class BrokenEngine(ScriptedEngine):
        async def resume(self) -> None:
            await anyio.lowlevel.checkpoint()
            raise ZeroDivisionError

    async with open_pool({A: BrokenEngine()}) as pool:
        await pool.publish(weights(0))
        await pool.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.generate, asks("p.1/L0/0/"))
            await anyio.wait_all_tasks_blocked()
            with pytest.RaisesGroup(ZeroDivisionError):
                await pool.resume()
            tasks.start_soon(pool.generate, asks("p.1/L1/0/"))
            await anyio.sleep(1.0)
            standing = {"p.1/L0/0/0/0", "p.1/L1/0/0/0"}
            assert await pool.live_requests() == standing, "they stand before the engine, which is paused"
            tasks.cancel_scope.cancel()


async def test_requests_that_are_done_weigh_nothing() -> None:
    """An engine that once had much to do would get nothing for the rest of the run."""
    async with open_pool_over(A, B, token_s=1.0) as pool:
        await pool.port.publish(weights(0))
        await pool.port.generate(asks("a/", samples=3))
        async with anyio.create_task_group() as tasks:
            for prefix in ("b/", "c/"):
                tasks.start_soon(pool.port.generate, asks(prefix))
                await anyio.wait_all_tasks_blocked()
        assert [len(engine.requests) for engine in pool.engines.values()] == [2, 1]


async def test_an_engine_that_is_another_process_now_gets_the_weights_alone() -> None:
    """I03: it answers, and serves nothing."""
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        pool.engines[A]._version = None
        pool.port.replaced(A)
        assert await pool.port.versions() == {A: None, B: 0}
        await anyio.sleep(1.0)
        assert [engine.loaded for engine in pool.engines.values()] == [[0, 0], [0]]
        assert (await pool.port.prepare_rollout()).members == {A, B}


async def test_a_request_that_is_cancelled_while_it_waits_is_forgotten() -> None:
    """I73: each would stay for the rest of the run."""
    async with open_pool_over(A) as pool:
        await pool.port.publish(weights(0))
        await pool.port.pause()
        with anyio.move_on_after(1.0):
            await pool.port.generate(asks("p.1/L0/0/"))
        assert not pool.port._waiting

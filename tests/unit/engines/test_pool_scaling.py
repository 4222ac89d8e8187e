"""A pool whose members come and go."""

import anyio
import pytest

from protocols.errors import ConductorError, EngineStale, WorkerLost
from tests.support.pools import A, B, C, FaultyEngine, Pool, asks, open_pool_over, weights


async def outcome_of(pool: Pool, prefix: str, outcomes: dict[str, str]) -> None:
    try:
        outcomes[prefix] = (await pool.port.generate(asks(prefix))).engine
    except ConductorError as exc:
        outcomes[prefix] = type(exc).__name__


async def test_a_new_engine_is_stale_until_it_has_loaded_what_is_wanted_alone() -> None:
    """DESIGN: a new engine is stale until it has loaded the current version, alone; nobody else waits or loads."""
    async with open_pool_over(A, token_s=1.0) as pool:
        await pool.port.publish(weights(3))
        added = FaultyEngine(load_s=5.0)
        pool.port.add({B: added})
        assert (await pool.port.versions())[B] is None
        began = anyio.current_time()
        assert (await pool.port.generate(asks("p.1/L1/0/"))).engine == A
        assert anyio.current_time() - began == pytest.approx(10.0), "who served goes on"
        assert (await pool.port.versions())[B] == 3
        assert len(pool.engines[A].times("load_weights")) == 1
        assert (await pool.port.generate(asks("p.1/L2/0/"))).engine == B


async def test_who_is_drained_finishes_and_gets_nothing_more() -> None:
    async with open_pool_over(A, B, token_s=1.0) as pool:
        await pool.port.publish(weights(0))
        outcomes: dict[str, str] = {}
        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(outcome_of, pool, f"p.1/L{number}/0/", outcomes)
            await anyio.wait_all_tasks_blocked()
            began = anyio.current_time()
            tasks.start_soon(outcome_of, pool, "p.1/L2/0/", outcomes)
            await pool.port.drain([B], within_s=100.0)
            assert anyio.current_time() - began == pytest.approx(10.0, abs=0.2)
            await outcome_of(pool, "p.1/L3/0/", outcomes)
        pool.port.forget([B])
        assert sorted(outcomes.values()).count(B) == 1 + (outcomes["p.1/L2/0/"] == B)
        assert outcomes["p.1/L3/0/"] == A
        assert set(await pool.port.versions()) == {A}
        await pool.port.publish(weights(1))
        assert len(pool.engines[B].times("load_weights")) == 1, "nobody keeps it any more"


async def test_what_does_not_finish_in_time_is_tried_elsewhere_and_can_still_be_aborted() -> None:
    """What was cut may run on until its engine has ended, and an abort must reach it."""
    async with open_pool_over(A, B, token_s=100.0) as pool:
        await pool.port.publish(weights(0))
        outcomes: dict[str, str] = {}
        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(outcome_of, pool, f"p.1/L{number}/0/", outcomes)
            await anyio.wait_all_tasks_blocked()
            await pool.port.drain([B], within_s=5.0)
            assert list(outcomes.values()) == [WorkerLost.__name__], "what was cut has ended before its engine does"
            asked = len(pool.engines[B].times("abort"))
            await pool.port.abort("p.1/L1/0/")
            assert len(pool.engines[B].times("abort")) == asked + 1
            pool.port.forget([B])
            tasks.cancel_scope.cancel()


async def test_a_drain_that_is_given_up_lets_the_engine_work_again() -> None:
    async with open_pool_over(A, token_s=1.0) as pool:
        await pool.port.publish(weights(0))
        outcomes: dict[str, str] = {}
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome_of, pool, "p.1/L0/0/", outcomes)
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(1.0):
                tasks.start_soon(outcome_of, pool, "p.1/L1/0/", outcomes, name="waits for it")
                await pool.port.drain([A], within_s=100.0)
        assert outcomes == {"p.1/L0/0/": A, "p.1/L1/0/": A}
        assert anyio.current_time() - began == pytest.approx(11.0, abs=0.2), "who waited was told at once"


async def test_a_publish_does_not_wait_for_an_engine_that_was_let_go() -> None:
    async with open_pool_over(A, B, C) as pool:
        pool.engines[C].faults["load_weights"] = None
        let_go = 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.port.publish, weights(0))
            await anyio.sleep(1.0)
            pool.port.forget([C])
            let_go = anyio.current_time()
        assert set((await pool.port.versions()).values()) == {0}
        assert anyio.current_time() == let_go


async def test_an_engine_that_was_let_go_gets_nothing_more() -> None:
    async with open_pool_over(A, B, token_s=1.0) as pool:
        await pool.port.publish(weights(0))
        pool.port.forget([B])
        outcomes: dict[str, str] = {}
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(outcome_of, pool, f"p.1/L{number}/0/", outcomes)
        assert set(outcomes.values()) == {A}


async def test_the_next_turn_of_what_an_engine_made_that_was_let_go_is_made_elsewhere() -> None:
    async with open_pool_over(A, B, token_s=1.0) as pool:
        await pool.port.publish(weights(0))
        makers = {prefix: (await pool.port.generate(asks(prefix))).engine for prefix in ("p.1/L0/0/", "p.1/L1/0/")}
        assert set(makers.values()) == {A, B}
        pool.port.forget([B])
        for prefix in makers:
            assert (await pool.port.generate(asks(prefix))).engine == A


async def test_a_pool_without_engines_says_so_and_lets_others_run() -> None:
    """Port methods reach a checkpoint on every path."""
    async with open_pool_over(A) as pool:
        pool.port.forget([A])
        with anyio.CancelScope() as scope:
            scope.cancel()
            await pool.port.generate(asks("p.1/L0/0/"))
        assert scope.cancelled_caught
        with pytest.raises(EngineStale):
            await pool.port.generate(asks("p.1/L0/0/"))

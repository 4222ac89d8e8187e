"""The pool's keepers: an engine that fell behind comes back alone, and nobody waits for it."""

import math
from contextlib import suppress
from functools import partial
from itertools import pairwise

import anyio
import pytest
from structlog.testing import capture_logs

from protocols.errors import (
    Aborted,
    ConductorError,
    DeadlineExceeded,
    EngineStale,
    InvariantError,
    Stalled,
    Transient,
    WorkerLost,
)
from protocols.inference import PublishReceipt
from tests.support.pools import A, B, Pool, asks, dead, open_pool_over, weights
from tests.support.scripted.engine import ScriptedEngine

MANY = 30.0
"""Seconds after which whatever fails no more has been tried again."""


async def requests_until(pool: Pool, seconds: float) -> None:
    """Send a request each second."""
    until = anyio.current_time() + seconds
    while anyio.current_time() < until:
        await pool.port.generate(asks(f"p.1/L{anyio.current_time()}/0/"))
        await anyio.sleep(1)


async def test_an_engine_that_hangs_while_it_loads_holds_up_nobody() -> None:
    """Fault search, seed 32: such an engine ended a run that had others. It gets half of a publish, 20 s."""
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults["load_weights"] = None
        began = anyio.current_time()
        receipts: list[PublishReceipt] = []

        async def publish() -> None:
            receipts.append(await pool.port.publish(weights(1)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(requests_until, pool, 10)
        (receipt,) = receipts
        assert anyio.current_time() - began == pytest.approx(20)
        assert (receipt.confirmed, receipt.stale) == ({B}, {A})
        assert len(pool.engines[B].requests) >= 9, "who has confirmed works, while others load"
        began = anyio.current_time()
        assert (await pool.port.publish(weights(2))).stale == {A}
        assert anyio.current_time() == began, "nobody waits for it a second time"


async def test_an_engine_that_does_not_come_back_is_told_of_less_and_less() -> None:
    """Each publish is a reason to try again, and each try was a warning."""
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults["load_weights"] = Transient("no room")
        with capture_logs() as logs:
            for version in range(1, 21):
                await pool.port.publish(weights(version))
    told = [entry["failures"] for entry in logs if entry["event"] == "engine.not_renewed"]
    assert told == [1, 2, 4, 8, 16]


async def test_what_an_engine_works_on_that_hangs_while_it_loads_is_tried_elsewhere() -> None:
    async with open_pool_over(A, B, token_s=10.0) as pool:
        await pool.port.publish(weights(0))
        errors: dict[str, ConductorError] = {}

        async def generate(prefix: str) -> None:
            try:
                await pool.port.generate(asks(prefix))
            except ConductorError as exc:
                errors[prefix] = exc

        async with anyio.create_task_group() as tasks:
            for prefix in ("a/", "b/"):
                tasks.start_soon(generate, prefix)
                await anyio.wait_all_tasks_blocked()
            pool.engines[A].faults["load_weights"] = None
            await pool.port.publish(weights(1))
            await anyio.wait_all_tasks_blocked()
            assert list(errors) == ["a/"], "as soon as its time is over"
        assert {prefix: type(error) for prefix, error in errors.items()} == {"a/": WorkerLost}
        assert errors["a/"].worker == A  # type: ignore[attr-defined]


async def test_a_request_that_does_not_end_holds_up_a_draining_publish_for_half_of_its_time() -> None:
    """Fault search: with one engine the run ended, although the request could be made again."""
    async with open_pool_over(A, token_s=math.inf, mode="drain") as pool, anyio.create_task_group() as tasks:
        await pool.port.publish(weights(0))
        lost: list[str] = []

        async def generate() -> None:
            try:
                await pool.port.generate(asks("a/"))
            except WorkerLost as exc:
                lost.append(exc.worker)

        tasks.start_soon(generate)
        await anyio.wait_all_tasks_blocked()
        began = anyio.current_time()
        assert (await pool.port.publish(weights(1))).confirmed == {A}
        assert anyio.current_time() - began == pytest.approx(20)
        assert lost == [A]


async def test_one_failure_that_comes_at_once_costs_no_work() -> None:
    async with open_pool_over(A, B, token_s=1.0) as pool:
        await pool.port.publish(weights(0))
        async with anyio.create_task_group() as tasks:
            for prefix in ("a/", "b/"):
                tasks.start_soon(pool.port.generate, asks(prefix))
                await anyio.wait_all_tasks_blocked()
            pool.engines[A].faults["load_weights"] = Transient("half of it came")
            assert (await pool.port.publish(weights(1))).stale == {A}
            pool.engines[A].faults.clear()
        assert await pool.port.versions() == {A: 1, B: 1}


@pytest.mark.parametrize("mode", ["inflight", "interrupt", "drain"])
async def test_an_engine_that_comes_back_gets_the_weights_alone_and_at_once(mode: str) -> None:
    """Fault search, seeds 522 and 1049: it stood idle until the next publish, or the run ended before."""
    async with open_pool_over(A, B, token_s=1.0, mode=mode) as pool:  # type: ignore[arg-type]
        await pool.port.publish(weights(3))
        pool.engines[A].faults |= {"generate": dead(), "status": dead()}
        with pytest.raises(WorkerLost):
            await pool.port.generate(asks("a/"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.port.generate, asks("b/"))
            await anyio.sleep(5)
            assert await pool.port.versions() == {A: None, B: 3}
            pool.engines[A].faults.clear()
            pool.engines[A]._version = None
            await anyio.sleep(4)
            assert await pool.port.versions() == {A: 3, B: 3}
        assert pool.engines[A].loaded == [3, 3]
        assert pool.engines[B].loaded == [3], "the others are left alone"
        assert pool.engines[B].times("pause") == ([] if mode != "interrupt" else pool.engines[B].times("pause")[:1])


async def test_an_engine_that_restarted_is_found_out_by_its_first_request_and_another_takes_it() -> None:
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(1))
        pool.engines[A]._version = None
        assert (await pool.port.generate(asks("a/"))).engine == B
        await anyio.sleep(MANY)
        assert await pool.port.versions() == {A: 1, B: 1}
        assert [engine.loaded for engine in pool.engines.values()] == [[1, 1], [1]]


async def test_newer_weights_do_not_wait_for_a_load_that_hangs() -> None:
    async with open_pool_over(A, B, load_s=1.0) as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults["load_weights"] = None
        with anyio.move_on_after(5):
            await pool.port.publish(weights(1))
        pool.engines[A].faults.clear()
        began = anyio.current_time()
        assert (await pool.port.publish(weights(2))).confirmed == {A, B}
        assert anyio.current_time() - began == pytest.approx(1.0)


async def test_while_newer_weights_are_loaded_nobody_believes_what_was_cut() -> None:
    async with open_pool_over(A, load_s=5.0) as pool, anyio.create_task_group() as tasks:
        await pool.port.publish(weights(0))
        for version in (1, 2):
            tasks.start_soon(partial(_publish_for, pool, version, 1.0 if version == 1 else 30.0))
            await anyio.sleep(2)
            assert await pool.port.versions() == {A: None}


async def _publish_for(pool: Pool, version: int, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await pool.port.publish(weights(version))


async def test_a_publish_stands_after_half_of_its_time_on_those_that_confirmed() -> None:
    """Here an engine finishes its work first, for half of the time, and has the other half to load."""
    async with open_pool_over(A, B, token_s=math.inf, mode="drain") as pool, anyio.create_task_group() as tasks:
        await pool.port.publish(weights(0))
        tasks.start_soon(partial(_until_lost, pool, "a/"))
        await anyio.wait_all_tasks_blocked()
        pool.engines[A].faults["load_weights"] = None
        began = anyio.current_time()
        assert (await pool.port.publish(weights(1))).confirmed == {B}
        assert anyio.current_time() - began == pytest.approx(20)


async def _until_lost(pool: Pool, prefix: str) -> None:
    with suppress(WorkerLost):
        await pool.port.generate(asks(prefix))


async def test_an_engine_that_was_lost_while_all_stood_still_goes_on_when_it_is_back() -> None:
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        await pool.port.pause()
        pool.engines[A].faults |= {"abort": dead(), "status": dead()}
        await pool.port.abort("p.1/")
        await pool.port.resume()
        assert (await ScriptedEngine.status(pool.engines[A])).paused
        pool.engines[A].faults.clear()
        await anyio.sleep(MANY)
        assert not (await pool.engines[A].status()).paused
        assert await pool.port.versions() == {A: 0, B: 0}


async def test_a_load_that_fails_while_all_stand_still_lets_nobody_go_on() -> None:
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        await pool.port.pause()
        pool.engines[A].faults["load_weights"] = Transient("no room")
        assert (await pool.port.publish(weights(1))).stale == {A}
        assert all([(await engine.status()).paused for engine in pool.engines.values()])


async def test_an_engine_that_loaded_and_stands_still_gets_no_requests() -> None:
    async with open_pool_over(A, B, mode="interrupt") as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults["resume"] = Transient("no answer")
        assert (await pool.port.publish(weights(1))).stale == {A}


async def test_a_request_waits_for_the_only_engine_to_come_back() -> None:
    async with open_pool_over(A) as pool:
        await pool.port.publish(weights(1))
        pool.engines[A].faults |= {"generate": dead(), "status": dead()}
        with pytest.raises(WorkerLost):
            await pool.port.generate(asks("a/"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.port.generate, asks("b/"))
            await anyio.sleep(20)
            pool.engines[A].faults.clear()
        assert len(pool.engines[A].requests) == 1


async def test_when_no_engine_is_left_the_verdict_names_each() -> None:
    """SkyRL PR#1691: the engine was gone and the process hung (I03)."""
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(1))
        pool.engines[A].faults |= {"generate": dead(), "status": dead()}
        pool.engines[B].faults |= {"generate": dead(), "status": None}
        for prefix in ("a/", "b/"):
            with pytest.raises(WorkerLost):
                await pool.port.generate(asks(prefix))
        began = anyio.current_time()
        with pytest.raises(Stalled, match=r"no engine serves version 1: rollout/0: failed \d+ times.*rollout/1.*probe"):
            await pool.port.generate(asks("c/"))
        assert anyio.current_time() - began == pytest.approx(40)
        with pytest.raises(Stalled, match=r"no engine confirmed version 2: .*killed.*rollout/1"):
            await pool.port.publish(weights(2))


async def test_weights_that_no_engine_takes_are_not_tried_twice() -> None:
    async with open_pool_over(A, B) as pool:
        for engine in pool.engines.values():
            engine.faults["load_weights"] = InvariantError("the weights do not fit")
        began = anyio.current_time()
        with pytest.raises(Stalled, match=r"rollout/0: failed once.*do not fit.*rollout/1.*do not fit"):
            await pool.port.publish(weights(1))
        assert anyio.current_time() == began
        with pytest.raises(Stalled):
            await pool.port.generate(asks("a/"))
        assert anyio.current_time() == began


async def test_the_first_publish_is_tried_again_until_an_engine_confirms() -> None:
    async with open_pool_over(A) as pool:
        pool.engines[A].faults["load_weights"] = Transient("no payload store yet")

        async def mend() -> None:
            await anyio.sleep(10)
            pool.engines[A].faults.clear()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mend)
            assert (await pool.port.publish(weights(1))).confirmed == {A}


async def test_pauses_grow_and_are_bounded() -> None:
    """A keeper that hammers an engine keeps it from coming back."""
    async with open_pool_over(A, B) as pool:
        pool.engines[A].faults["load_weights"] = Transient("no room")
        await pool.port.publish(weights(1))
        await anyio.sleep(300)
        tried = pool.engines[A].times("load_weights")
        pauses = [after - before for before, after in pairwise(tried)]
        assert 0.375 <= pauses[0] <= 0.5
        assert all(after > before for before, after in pairwise(pauses[:3]))
        assert all(3.0 <= pause <= 4.0 for pause in pauses[3:]), "a tenth of the time that a publish may take"
        assert len(tried) > 70


async def test_an_abort_reaches_a_request_that_no_engine_has_yet() -> None:
    """verifiers PR#1035: an engine that came back after the abort had not heard of it, and took the request."""
    async with open_pool_over(A) as pool:
        await pool.port.publish(weights(1))
        pool.engines[A].faults |= {name: dead() for name in ("generate", "status", "abort", "live_requests")}
        with pytest.raises(WorkerLost):
            await pool.port.generate(asks("p.1/L0/0/"))
        aborted: list[str] = []

        async def generate() -> None:
            try:
                await pool.port.generate(asks("p.1/L1/0/"))
            except Aborted as exc:
                aborted.append(exc.prefix)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate)
            await anyio.sleep(1)
            assert (await pool.port.abort("p.1/L1/")).unconfirmed == frozenset()
            await anyio.wait_all_tasks_blocked()
            assert aborted == ["p.1/L1/"], "at once"
            pool.engines[A].faults.clear()
        assert aborted == ["p.1/L1/"]
        await anyio.sleep(MANY)
        assert pool.engines[A].requests == []


async def test_before_anything_is_published_nobody_waits() -> None:
    async with open_pool_over(A) as pool:
        with anyio.fail_after(0.1), pytest.raises(EngineStale):
            await pool.port.generate(asks("a/"))


async def test_a_keeper_goes_with_its_pool() -> None:
    async with open_pool_over(A, B) as pool:
        pool.engines[A].faults["load_weights"] = DeadlineExceeded(what="loading", deadline_s=1)
        await pool.port.publish(weights(1))
        tried = partial(len, pool.engines[A].called)
    before = tried()
    await anyio.sleep(100)
    assert tried() == before


async def test_an_abort_ends_a_request_that_waits_for_the_pool_to_go_on() -> None:
    async with open_pool_over(A) as pool, anyio.create_task_group() as tasks:
        await pool.port.publish(weights(1))
        await pool.port.pause()
        ended = anyio.Event()

        async def generate() -> None:
            with pytest.raises(Aborted):
                await pool.port.generate(asks("p.1/L1/0/"))
            ended.set()

        tasks.start_soon(generate)
        await anyio.wait_all_tasks_blocked()
        await pool.port.abort("p.1/L1/")
        with anyio.fail_after(0.1):
            await ended.wait()

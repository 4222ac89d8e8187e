"""The pool: routing, the gate, partial failures."""

import math
from functools import partial

import anyio
import pytest

from backends.engines.pool import open_pool
from protocols.errors import ConductorError, Transient, WorkerLost
from protocols.inference import GenerateRequest, Generation, InferenceControllerPort, PublishMode, Segment
from protocols.messages import WeightVersion
from tests.support.pools import A, B, C, FaultyEngine, asks, dead, open_pool_over, weights


async def test_requests_go_to_the_member_with_the_fewest_samples() -> None:
    async with open_pool_over(A, B, token_s=1.0) as pool:
        await pool.port.publish(weights(0))
        async with anyio.create_task_group() as tasks:
            for prefix, samples in (("a/", 3), ("b/", 1), ("c/", 1), ("d/", 1), ("e/", 1)):
                tasks.start_soon(pool.port.generate, asks(prefix, samples=samples))
                await anyio.wait_all_tasks_blocked()
        taken = {
            name: [one.samples[0].request_id[0] for one in engine.requests] for name, engine in pool.engines.items()
        }
        assert taken == {A: ["a", "e"], B: ["b", "c", "d"]}


async def test_one_failing_member_is_stale_and_the_publish_stands() -> None:
    async with open_pool_over(A, B, C) as pool:
        pool.engines[B].faults["load_weights"] = Transient("no room")
        receipt = await pool.port.publish(weights(1))
        assert (receipt.confirmed, receipt.stale) == ({A, C}, {B})
        for lease in range(6):
            await pool.port.generate(asks(f"p.1/L{lease}/0/"))
        assert pool.engines[B].requests == []
        assert (await pool.port.prepare_rollout()).stale == {B}
        pool.engines[B].faults.clear()
        await anyio.sleep(1)
        assert (await pool.port.publish(weights(1))).stale == frozenset()
        assert [engine.loaded for engine in pool.engines.values()] == [[1], [1], [1]], "only B was sent to again"


async def test_members_load_at_the_same_time() -> None:
    async with open_pool_over(A, B, C, load_s=5.0) as pool:
        started = anyio.current_time()
        await pool.port.publish(weights(1))
        assert anyio.current_time() - started == pytest.approx(5.0)


async def _segments_over_a_publish(mode: PublishMode) -> tuple[tuple[Segment, ...], float]:
    """Publish when 4 of 10 tokens, each of a second, are made; returns who made them, and when all was over."""
    async with open_pool_over(A, token_s=1.0, load_s=3.0, mode=mode) as pool:
        await pool.port.publish(weights(0))
        began = anyio.current_time()
        found: list[Generation] = []

        async def generate() -> None:
            found.append(await pool.port.generate(asks("a/")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate)
            await anyio.sleep(4.5)
            await pool.port.publish(weights(1))
            await pool.port.generate(asks("b/", max_tokens=1))
        return found[0].completions[0].segments, anyio.current_time() - began


def _segment(version: int, count: int) -> Segment:
    return Segment(version=WeightVersion(version), count=count)


async def test_running_requests_go_on_while_weights_are_loaded() -> None:
    """Three seconds of loading, in which three more tokens are made by the old weights."""
    segments, _ = await _segments_over_a_publish("inflight")
    assert segments == (_segment(0, 8), _segment(1, 2))


async def test_interrupted_requests_stand_still_and_keep_their_tokens() -> None:
    segments, seconds = await _segments_over_a_publish("interrupt")
    assert segments == (_segment(0, 5), _segment(1, 5))
    assert seconds == pytest.approx(13)


async def test_drained_requests_finish_under_the_weights_they_began_with() -> None:
    """I23: those that come meanwhile wait for the new ones, or the drain would never end."""
    segments, seconds = await _segments_over_a_publish("drain")
    assert segments == (_segment(0, 10),)
    assert seconds == pytest.approx(14)


@pytest.mark.parametrize("fault", ["load_weights", "pause"])
async def test_an_interrupting_publish_that_fails_leaves_no_engine_standing_still(fault: str) -> None:
    """I22."""
    async with open_pool_over(A, B, mode="interrupt") as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults[fault] = Transient("broken pipe")
        receipt = await pool.port.publish(weights(1))
        assert B in receipt.confirmed
        assert not (await pool.engines[A].status()).paused
        assert not (await pool.engines[B].status()).paused


async def test_a_failed_load_leaves_no_engine_standing_still() -> None:
    """OpenRLHF#1164: a failed broadcast left engines paused, and their requests with them (I22)."""
    async with open_pool_over(A, B, token_s=1.0) as pool:
        await pool.port.publish(weights(0))
        async with anyio.create_task_group() as tasks:
            for lease in range(2):
                tasks.start_soon(pool.port.generate, asks(f"p.1/L{lease}/0/"))
            await anyio.wait_all_tasks_blocked()
            pool.engines[A].faults["load_weights"] = Transient("broken pipe")
            await pool.port.publish(weights(1))
            assert not (await pool.engines[A].status()).paused
            pool.engines[A].faults.clear()


async def test_a_cancelled_publish_leaves_no_engine_standing_still() -> None:
    """The same, when the caller stops waiting for a load that hangs: who confirmed stays confirmed (I22)."""
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults["load_weights"] = None
        with anyio.move_on_after(10) as scope:
            await pool.port.publish(weights(1))
        assert scope.cancelled_caught
        assert await pool.port.versions() == {A: None, B: 1}
        await pool.port.generate(asks("p.1/L0/0/"))
        assert len(pool.engines[B].requests) == 1
        await anyio.sleep(10.1)
        assert not (await pool.engines[A].status()).paused, "when its own time to load is over"


async def test_a_silent_engine_cannot_hold_up_a_resume() -> None:
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        await pool.port.pause()
        pool.engines[A].faults["resume"] = None
        with anyio.fail_after(2.5):
            await pool.port.resume()
        assert await pool.port.versions() == {A: None, B: 0}
        assert not (await pool.engines[B].status()).paused


@pytest.mark.parametrize("how", ["fails", "cancelled"])
async def test_a_pause_that_does_not_come_off_lets_all_go_on(how: str) -> None:
    """OpenRLHF PR#1262: the pause stood outside the block that resumes (I22)."""
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        pool.engines[B].faults["pause"] = Transient("no answer") if how == "fails" else None
        with anyio.move_on_after(1):
            if how == "fails":
                with pytest.raises(Transient, match="no answer"):
                    await pool.port.pause()
            else:
                await pool.port.pause()
        assert not any([(await engine.status()).paused for engine in pool.engines.values()])
        await pool.port.generate(asks("p.1/L0/0/"))


async def test_no_request_slips_in_between_pause_and_load() -> None:
    """prime-rl PR#2841: a request was admitted after the pause and before the load (I24)."""
    async with open_pool_over(A, load_s=1.0) as pool:
        await pool.port.publish(weights(0))
        stamps: set[int] = set()

        async def generate(lease: int) -> None:
            generation = await pool.port.generate(asks(f"p.1/L{lease}/0/"))
            stamps.update(one.version for done in generation.completions for one in done.segments)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.port.publish, weights(1))
            await anyio.wait_all_tasks_blocked()
            for lease in range(3):
                tasks.start_soon(generate, lease)
            await anyio.sleep(0.9)
            assert pool.engines[A].requests == [], "the gate is shut until the member has confirmed"
        assert stamps == {1}


async def test_requests_wait_while_the_pool_is_paused_also_over_a_publish() -> None:
    async with open_pool_over(A) as pool:
        await pool.port.publish(weights(0))
        await pool.port.pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.port.generate, asks("p.1/L0/0/"))
            await pool.port.publish(weights(1))
            await anyio.sleep(10)
            assert pool.engines[A].requests == []
            assert (await pool.engines[A].status()).paused
            await pool.port.resume()
        assert len(pool.engines[A].requests) == 1


async def test_a_lost_engine_gets_no_more_requests() -> None:
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults["generate"] = dead()
        with pytest.raises(WorkerLost) as caught:
            await pool.port.generate(asks("p.1/L0/0/"))
        assert caught.value.worker == A
        pool.engines[A].faults["status"] = dead()
        readiness = await pool.port.prepare_rollout()
        assert (readiness.members, readiness.lost) == ({B}, {A})
        for lease in range(3):
            await pool.port.generate(asks(f"p.1/L{lease}/1/"))
        assert len(pool.engines[B].requests) == 3


async def test_a_probe_finds_out_who_is_silent_and_who_serves_something_else() -> None:
    async with open_pool_over(A, B, C) as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults["status"] = None
        await pool.engines[B].load_weights(weights(7))
        started = anyio.current_time()
        readiness = await pool.port.prepare_rollout()
        assert anyio.current_time() - started <= 2.0
        assert (readiness.members, readiness.lost) == ({B, C}, {A})
        assert pool.engines[B].loaded == [0, 7, 0], "its keeper did not wait for the silent one"


@pytest.mark.parametrize("method", ["abort", "live_requests"])
@pytest.mark.parametrize("error", [None, Transient("no answer")], ids=["silent", "failing"])
async def test_an_abort_names_the_engine_that_does_not_confirm(method: str, error: ConductorError | None) -> None:
    async with open_pool_over(A, B, token_s=math.inf) as pool:
        await pool.port.publish(weights(0))
        async with anyio.create_task_group() as tasks:
            for lease in range(2):
                tasks.start_soon(partial(_ignoring_errors, pool.port, asks(f"p.1/L{lease}/0/")))
                await anyio.wait_all_tasks_blocked()
            pool.engines[A].faults[method] = error
            started = anyio.current_time()
            report = await pool.port.abort("p.1/")
            assert anyio.current_time() - started <= 2.0
            assert report.confirmed == {"p.1/L1/0/0/0"}, "the other engine's answer is not lost"
            assert report.unconfirmed == {A}


async def test_a_dead_engine_runs_nothing_and_owes_no_confirmation() -> None:
    async with open_pool_over(A, B) as pool:
        await pool.port.publish(weights(0))
        pool.engines[A].faults |= {"abort": dead(), "status": dead()}
        report = await pool.port.abort("p.1/")
        assert report.unconfirmed == frozenset()
        assert await pool.port.versions() == {A: None, B: 0}


async def test_what_still_lives_after_an_abort_is_unconfirmed() -> None:
    """The engine's own live set decides, not its reply (I46)."""

    class Forgetful(FaultyEngine):
        async def abort(self, prefix: str) -> frozenset[str]:
            return await self.live_requests()

    async with open_pool({A: Forgetful(token_s=math.inf)}) as pool, anyio.create_task_group() as tasks:
        await pool.publish(weights(0))
        tasks.start_soon(pool.generate, asks("p.1/L0/0/"))
        await anyio.wait_all_tasks_blocked()
        report = await pool.abort("p.1/L0/")
        assert (report.confirmed, report.unconfirmed) == (frozenset(), {"p.1/L0/0/0/0"})
        tasks.cancel_scope.cancel()


async def test_an_abort_that_is_cancelled_at_once_has_reached_every_engine() -> None:
    """Remote work does not stop because we stopped waiting: the abort is sent before anything is awaited."""
    async with open_pool_over(A, B, token_s=math.inf) as pool:
        await pool.port.publish(weights(0))
        async with anyio.create_task_group() as tasks:
            for lease in range(2):
                tasks.start_soon(partial(_ignoring_errors, pool.port, asks(f"p.1/L{lease}/0/")))
            await anyio.wait_all_tasks_blocked()
            with anyio.CancelScope() as scope:
                scope.cancel()
                await pool.port.abort("p.1/")
        assert await pool.port.live_requests() == frozenset()


async def test_nobody_guesses_what_a_silent_engine_runs() -> None:
    async with open_pool_over(A, B) as pool:
        pool.engines[A].faults["live_requests"] = Transient("no answer")
        with pytest.raises(Transient, match="no answer"):
            await pool.port.live_requests()


async def _ignoring_errors(port: InferenceControllerPort, request: GenerateRequest) -> None:
    try:
        await port.generate(request)
    except ConductorError:
        return

"""The enumerator of awaits finds each of them, disturbs exactly one, and says what it left behind."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends.sim.virtual_time import Endless
from protocols.aio import owned
from protocols.errors import ForeignCancellation
from tests.support.await_probe import Injection, Planted, enumerate_awaits
from tests.support.trials import NotRepeatable, TasksLeft


async def _three_awaits() -> str:
    await checkpoint()
    await anyio.sleep(1)
    await checkpoint()
    return "done"


async def _two_children(log: list[str]) -> str:
    async def child(name: str) -> None:
        await anyio.sleep(1)
        log.append(name)

    async with anyio.create_task_group() as group:
        for name in ("left", "right"):
            group.start_soon(owned, name, lambda name=name: child(name), name=f"child {name}")
    return "done"


@asynccontextmanager
async def _entered(log: list[str]) -> AsyncGenerator[None]:
    await checkpoint()
    try:
        yield
    finally:
        log.append("left")


def test_every_await_of_every_task_is_found_and_named() -> None:
    sites = [site for _, site, _ in enumerate_awaits(lambda: _two_children([]), "cancel_scope")]
    assert [site.partition(" at ")[0] for site in sites] == ["main", "child left", "child right"]
    assert all("test_await_probe.py:" in site for site in sites)
    assert [number for number, _, _ in enumerate_awaits(_three_awaits, "fail")] == [1, 2, 3]


def test_awaits_inside_of_async_generators_and_clean_up_are_found() -> None:
    async def program() -> None:
        async with _entered([]):
            await anyio.sleep(1)

    sites = [site for _, site, _ in enumerate_awaits(program, "fail")]
    assert ["_entered" in site for site in sites] == [True, False]


def test_a_group_inside_of_an_async_generator_is_not_broken() -> None:
    """A planted error in a group's wait for its children would let the children outlive it."""

    @asynccontextmanager
    async def nursery() -> AsyncGenerator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 1, name="child")
            yield

    async def program() -> None:
        async with nursery():
            pass

    assert [site.split()[0] for _, site, _ in enumerate_awaits(program, "fail")] == ["child"]
    assert [site.split()[0] for _, site, _ in enumerate_awaits(program, "cancel_main")] == ["main", "child"]


@pytest.mark.parametrize("injection", ["cancel_task", "cancel_main"])
def test_a_native_cancel_ends_a_single_task_at_each_await(injection: Injection) -> None:
    trials = list(enumerate_awaits(_three_awaits, injection))
    assert len(trials) == 3
    for _, _, outcome in trials:
        assert isinstance(outcome.error, asyncio.CancelledError)
        assert not outcome.cancelled


def test_a_cancelled_scope_leaves_no_exception() -> None:
    for _, _, outcome in enumerate_awaits(_three_awaits, "cancel_scope"):
        assert outcome.error is None
        assert outcome.cancelled
        assert outcome.value is None


def test_a_planted_error_surfaces_from_each_await() -> None:
    for _, _, outcome in enumerate_awaits(_three_awaits, "fail"):
        assert isinstance(outcome.error, Planted)
    for _, _, outcome in enumerate_awaits(lambda: _two_children([]), "fail"):
        assert pytest.RaisesGroup(Planted).matches(outcome.error)


def test_a_planted_error_can_be_caught_where_it_is_planted() -> None:
    async def program() -> str:
        try:
            await anyio.sleep(5)
        except Planted:
            return f"caught at {anyio.current_time():g}"
        return "slept"

    assert [outcome.value for _, _, outcome in enumerate_awaits(program, "fail")] == ["caught at 0"]


def test_a_native_cancel_of_a_child_is_a_classed_failure_where_the_task_is_owned() -> None:
    """A natively cancelled child made a run come back as clean and finished at 44 of 54 points."""
    outcomes = {
        site.split()[0]: outcome for _, site, outcome in enumerate_awaits(lambda: _two_children([]), "cancel_task")
    }
    assert isinstance(outcomes["main"].error, asyncio.CancelledError)
    assert pytest.RaisesGroup(ForeignCancellation).matches(outcomes["child"].error)


def test_a_bare_task_group_takes_a_native_cancel_of_a_child_for_its_end() -> None:
    """The enumerator finds the incident that ``owned`` is there for: half the work is lost, and nothing is raised."""
    done: list[list[str]] = []

    async def program() -> str:
        done.append(log := [])

        async def child(name: str) -> None:
            await anyio.sleep(1)
            log.append(name)

        async with anyio.create_task_group() as group:
            group.start_soon(child, "left", name="left")
            group.start_soon(child, "right", name="right")
        return "done"

    trials = [trial for trial in enumerate_awaits(program, "cancel_task") if not trial.site.startswith("main")]
    assert [outcome.value for _, _, outcome in trials] == ["done", "done"]
    assert done[2:] == [[], []]


def test_a_lock_survives_a_planted_error() -> None:
    """An error is not planted where anyio itself could not bear one: the checkpoint after a lock is taken."""

    async def program() -> None:
        lock = anyio.Lock()
        for _ in range(2):
            try:
                async with lock:
                    await checkpoint()
            except Planted:
                continue

    assert len(list(enumerate_awaits(program, "fail"))) == 2


async def _leaves_a_task() -> None:
    forgotten = asyncio.get_running_loop().create_task(anyio.sleep(10), name="forgotten")
    await checkpoint()
    await anyio.sleep(20)
    assert forgotten.done()


async def _cleans_up() -> None:
    try:
        await anyio.sleep(1)
    finally:
        with anyio.move_on_after(5, shield=True):
            await checkpoint()


async def _hangs_after_a_failure() -> None:
    try:
        await anyio.sleep(1)
    except Planted:
        await anyio.sleep(1000)


def test_a_task_that_is_left_alive_is_named_with_the_place() -> None:
    with pytest.raises(TasksLeft, match=r"place 1 of 3, main at .*: forgotten at"):
        list(enumerate_awaits(_leaves_a_task, "cancel_main"))


def test_a_run_that_does_not_end_is_bounded_and_names_the_place() -> None:
    with pytest.raises(Endless) as caught:
        list(enumerate_awaits(_hangs_after_a_failure, "fail", horizon_s=100))
    assert any("place 1 of 1, main at test_await_probe.py" in note for note in caught.value.__notes__)


def test_clean_up_counts_as_well() -> None:
    assert len(list(enumerate_awaits(_cleans_up, "cancel_main"))) == 2


def test_a_program_that_fails_undisturbed_is_not_enumerated() -> None:
    async def program() -> None:
        await checkpoint()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(enumerate_awaits(program, "fail"))


def test_a_program_that_goes_another_way_is_not_enumerated() -> None:
    chance = random.Random(0)

    async def program() -> None:
        if chance.random() < 0.5:
            await checkpoint()
        else:
            await checkpoint()

    def enumerate_often() -> None:
        for _ in range(10):
            list(enumerate_awaits(program, "cancel_main"))

    with pytest.raises(NotRepeatable, match="place 1 of 1"):
        enumerate_often()


def test_a_task_cancelled_before_its_first_step_leaves_no_coroutine_behind() -> None:
    """Its coroutine never runs; asyncio would warn that it was never awaited."""

    async def program() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 1)
            asyncio.get_running_loop().create_task(checkpoint()).cancel()
            await checkpoint()

    assert len(list(enumerate_awaits(program, "cancel_scope"))) == 3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_shuffles_all_runs_alike(seed: int) -> None:
    program: Callable[[], Awaitable[str]] = lambda: _two_children([])  # noqa: E731
    assert len(list(enumerate_awaits(program, "cancel_scope", seed=seed))) == 3

"""Engines that only evaluate, beside those of the training."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from backends.engines._reserved import ReservedEngines
from protocols.errors import Aborted, Transient
from tests.support.pools import A, B, Pool, asks, open_pool_over, weights


@asynccontextmanager
async def open_both() -> AsyncGenerator[tuple[ReservedEngines, Pool, Pool]]:
    """Open two pools of one engine each, whose requests last a while; both serve weights."""
    async with open_pool_over(A, token_s=100.0) as training, open_pool_over(B, token_s=100.0) as evaluating:
        await training.port.publish(weights(1))
        await evaluating.port.publish(weights(0))
        yield ReservedEngines(training.port, evaluating.port, prefix="p.1/E"), training, evaluating


async def _until_aborted(port: ReservedEngines, prefix: str) -> None:
    with pytest.raises(Aborted):
        await port.generate(asks(prefix))


@pytest.mark.parametrize(
    ("prefix", "ended"),
    [("p.1/L0/", ["p.1/L0/0/0/0"]), ("p.1/E0/", ["p.1/E0/3/0/0/0"]), ("p.1/", ["p.1/E0/3/0/0/0", "p.1/L0/0/0/0"])],
)
async def test_an_abort_asks_those_that_can_have_what_it_names(prefix: str, ended: list[str]) -> None:
    async with open_both() as (port, training, evaluating), anyio.create_task_group() as tasks:
        for request in ("p.1/L0/0/", "p.1/E0/3/0/"):
            tasks.start_soon(partial(_until_aborted, port, request))
        await anyio.wait_all_tasks_blocked()
        assert len(await port.live_requests()) == 2
        report = await port.abort(prefix)
        assert sorted(report.confirmed) == ended
        assert bool(training.engines[A].times("abort")) == any("/L" in name for name in ended)
        assert bool(evaluating.engines[B].times("abort")) == any("/E" in name for name in ended)
        await port.abort("p.1/")


async def test_an_abort_of_the_training_waits_for_no_engine_that_evaluates() -> None:
    async with open_both() as (port, _, evaluating):
        evaluating.engines[B].faults["abort"] = None
        with anyio.fail_after(0.1):
            assert (await port.abort("p.1/L0/")).unconfirmed == frozenset()
        assert (await port.abort("p.1/")).unconfirmed == {B}


async def test_nobody_guesses_what_a_silent_engine_runs() -> None:
    async with open_both() as (port, _, evaluating):
        evaluating.engines[B].faults["live_requests"] = Transient("no answer")
        with pytest.raises(Transient, match="no answer"):
            await port.live_requests()


async def test_publishing_leaves_the_engines_that_evaluate_alone() -> None:
    async with open_both() as (port, _, evaluating):
        assert (await port.publish(weights(2))).confirmed == {A}
        assert await evaluating.port.versions() == {B: 0}

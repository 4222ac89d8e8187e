"""What every rollout executor keeps to."""

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import anyio
import pytest

from backends.episodes.single_turn import SingleTurn
from backends.models.tokenizers import CharacterTokenizer
from backends.sim.payloads import ScriptedPayloads
from conductor.fleet.attendance import Attendance
from conductor.fleet.spread import Executors
from protocols.errors import Aborted, EngineStale
from protocols.inference import AbortReport, Sampling, WeightsManifest
from protocols.messages import LeaseId, PayloadRef, RegistrationKey, WeightVersion, WorkerId
from protocols.prompts import Prompt, TextPrompt
from protocols.rollouts import GroupPayload, GroupReceipt, RolloutExecutorPort, RolloutLease
from protocols.wire import over_codec
from tests.support.scripted.executor import ScriptedExecutor
from tests.support.scripted.inference import ScriptedInference

VOCABULARY = "0123456789." + "".join(chr(0x4E00 + index) for index in range(89))
TOKENS = 4


class Opened(NamedTuple):
    """An executor and what it works with."""

    executor: RolloutExecutorPort
    payloads: ScriptedPayloads
    inference: ScriptedInference


OpenExecutor = Callable[..., AbstractAsyncContextManager[Opened]]
"""``(*, token_s=0.25)``: seconds for each of ``TOKENS`` tokens; ``math.inf`` hangs."""


async def _served(token_s: float) -> ScriptedInference:
    inference = ScriptedInference(token_s=token_s)
    payload = PayloadRef(owner="weights/", key="3")
    await inference.publish(WeightsManifest(version=WeightVersion(3), payload=payload, tensors=1, size_bytes=4))
    return inference


@asynccontextmanager
async def _single_turn(*, token_s: float = 0.25) -> AsyncGenerator[Opened]:
    payloads, inference = ScriptedPayloads(), await _served(token_s)
    yield Opened(SingleTurn(CharacterTokenizer(VOCABULARY, "."), inference, payloads), payloads, inference)


@asynccontextmanager
async def _scripted(*, token_s: float = 0.25) -> AsyncGenerator[Opened]:
    payloads, inference = ScriptedPayloads(), await _served(token_s)
    executor = ScriptedExecutor(payloads, inference, duration_s=lambda _: TOKENS * token_s, tokens=TOKENS)
    yield Opened(executor, payloads, inference)


@asynccontextmanager
async def _two(*, token_s: float = 0.25) -> AsyncGenerator[Opened]:
    payloads, inference = ScriptedPayloads(), await _served(token_s)
    executors = [SingleTurn(CharacterTokenizer(VOCABULARY, "."), inference, payloads) for _ in range(2)]
    both = Executors({WorkerId(f"episode/{number}"): one for number, one in enumerate(executors)}, Attendance())
    yield Opened(both, payloads, inference)


def _wired(opened: OpenExecutor) -> OpenExecutor:
    @asynccontextmanager
    async def open_wired(*, token_s: float = 0.25) -> AsyncGenerator[Opened]:
        async with opened(token_s=token_s) as direct:
            yield direct._replace(executor=over_codec(RolloutExecutorPort, direct.executor))

    return open_wired


@pytest.fixture(
    params=[
        pytest.param(_single_turn, id="single_turn"),
        pytest.param(_wired(_single_turn), id="single_turn-wired"),
        pytest.param(_two, id="two"),
        pytest.param(_scripted, id="scripted"),
        pytest.param(_wired(_scripted), id="scripted-wired"),
    ]
)
def open_executor(request: pytest.FixtureRequest) -> OpenExecutor:
    return request.param


def lease(number: int = 0, attempt: int = 0, position: int | None = None) -> RolloutLease:
    return RolloutLease(
        lease_id=LeaseId(f"L{number}"),
        attempt=attempt,
        registration=RegistrationKey(),
        prompt=Prompt(position=number if position is None else position, content=TextPrompt(text="123")),
        group_size=3,
        sampling=Sampling(max_tokens=TOKENS),
        seed=11,
    )


async def payload_of(opened: Opened, receipt: GroupReceipt) -> GroupPayload:
    payload = await opened.payloads.get(receipt.payload)
    assert isinstance(payload, GroupPayload)
    return payload


async def test_a_receipt_stands_for_its_payload(open_executor: OpenExecutor) -> None:
    """I31: every token belongs to a segment that says which weights made it."""
    async with open_executor() as opened:
        receipt = await opened.executor.generate(lease(5, attempt=1))
        assert (receipt.lease_id, receipt.attempt) == ("L5", 1)
        assert receipt.payload.owner == lease(5, attempt=1).prefix
        payload = await payload_of(opened, receipt)
        assert receipt.prompt_tokens == len(payload.prompt_ids)
        assert payload.prompt_text == "123"
        assert len(receipt.samples) == len(payload.samples) == 3
        for sample, stored in zip(receipt.samples, payload.samples, strict=True):
            assert sample.tokens == len(stored.token_ids) == len(stored.logprobs)
            assert sum(segment.count for segment in sample.segments) == sample.tokens
            assert {segment.version for segment in sample.segments} == {3}
            assert sample.preview == stored.text
            assert sample.finish == "length"


async def test_a_readmitted_group_draws_the_same_tokens(open_executor: OpenExecutor) -> None:
    """I40: random streams belong to the prompt's position, not to lease or attempt."""
    async with open_executor() as opened:
        first = await payload_of(opened, await opened.executor.generate(lease(0, position=7)))
        again = await payload_of(opened, await opened.executor.generate(lease(9, attempt=2, position=7)))
        other = await payload_of(opened, await opened.executor.generate(lease(1, position=8)))
    assert again.samples == first.samples
    assert other.samples != first.samples
    assert len({sample.token_ids for sample in first.samples}) == 3, "each sample has a stream of its own"


async def test_leases_are_played_at_the_same_time(open_executor: OpenExecutor) -> None:
    async with open_executor(token_s=1.0) as opened:
        started = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(opened.executor.generate, lease(number))
        assert anyio.current_time() - started < 1.5 * TOKENS
        assert await opened.payloads.owners() == {lease(number).prefix for number in range(50)}


async def test_an_abort_that_overtakes_its_attempt_wins(open_executor: OpenExecutor) -> None:
    """verifiers PR#1035: the cancel came before the request was known, and the work ran on."""
    async with open_executor() as opened:
        report = await opened.executor.abort(lease(1).prefix)
        assert report.unconfirmed == frozenset()
        with pytest.raises(Aborted):
            await opened.executor.generate(lease(1))
        assert await opened.payloads.owners() == frozenset()
        await opened.executor.generate(lease(1, attempt=1))
        await opened.executor.generate(lease(17))


@pytest.mark.parametrize("after_s", [0.0, 0.6])
@pytest.mark.parametrize("token_s", [0.25, math.inf])
async def test_an_abort_ends_what_runs(open_executor: OpenExecutor, after_s: float, token_s: float) -> None:
    """I44, I46: orphans went on running after their client had left."""
    async with open_executor(token_s=token_s) as opened, anyio.create_task_group() as tasks:
        refused: list[Aborted] = []

        async def play() -> None:
            with pytest.raises(Aborted) as caught:
                await opened.executor.generate(lease(1))
            refused.append(caught.value)

        tasks.start_soon(play)
        await anyio.sleep(after_s)
        await anyio.wait_all_tasks_blocked()
        report = await opened.executor.abort(lease(1).prefix)
        assert report.unconfirmed == frozenset()
        assert all(one.startswith(lease(1).prefix) for one in report.confirmed)
        assert await opened.inference.live_requests() == frozenset()
        await anyio.wait_all_tasks_blocked()
        assert len(refused) == 1
        assert await opened.payloads.owners() == frozenset()


async def test_one_abort_reaches_every_attempt_under_its_prefix(open_executor: OpenExecutor) -> None:
    async with open_executor(token_s=math.inf) as opened, anyio.create_task_group() as tasks:
        ended: list[str] = []

        async def play(number: int) -> None:
            with pytest.raises(Aborted):
                await opened.executor.generate(lease(number))
            ended.append(f"L{number}")

        for number in (1, 2, 17):
            tasks.start_soon(play, number)
        await anyio.wait_all_tasks_blocked()
        await opened.executor.abort(lease(1).prefix)
        await anyio.wait_all_tasks_blocked()
        assert ended == ["L1"], "L17 does not begin with L1/"
        await opened.executor.abort(RegistrationKey().prefix)
        await anyio.wait_all_tasks_blocked()
        assert sorted(ended) == ["L1", "L17", "L2"]
        assert await opened.inference.live_requests() == frozenset()


async def test_an_abort_after_the_receipt_releases_the_payload_and_may_be_repeated(open_executor: OpenExecutor) -> None:
    async with open_executor() as opened:
        await opened.executor.generate(lease(1))
        await opened.executor.generate(lease(2))
        for _ in range(3):
            assert await opened.executor.abort(lease(1).prefix) == AbortReport()
        assert await opened.payloads.owners() == {lease(2).prefix}


async def test_a_cancelled_attempt_can_be_aborted(open_executor: OpenExecutor) -> None:
    """Stopping to wait stops nothing for sure: only the abort confirms."""
    async with open_executor(token_s=math.inf) as opened:
        with anyio.move_on_after(1) as scope:
            await opened.executor.generate(lease(1))
        assert scope.cancelled_caught
        report = await opened.executor.abort(lease(1).prefix)
        assert report.unconfirmed == frozenset()
        assert await opened.inference.live_requests() == frozenset()
        assert await opened.payloads.owners() == frozenset()


async def test_a_failure_of_the_engines_passes_and_leaves_nothing(open_executor: OpenExecutor) -> None:
    async with open_executor() as opened:
        opened.inference._versions = dict.fromkeys(opened.inference._versions)
        with pytest.raises(EngineStale):
            await opened.executor.generate(lease(1))
        assert await opened.payloads.owners() == frozenset()


async def test_every_call_reaches_a_checkpoint(open_executor: OpenExecutor) -> None:
    async with open_executor() as opened:
        await opened.executor.abort(lease(3).prefix)
        for call in (
            lambda: opened.executor.generate(lease(1)),
            lambda: opened.executor.generate(lease(3)),
            lambda: opened.executor.abort(lease(2).prefix),
        ):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught

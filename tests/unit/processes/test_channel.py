"""Calls over one stream: concurrent, cancelled, too large, damaged. On the virtual clock, over a small pipe."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends.processes.channel import Channel, ChannelEnded
from backends.processes.frames import MAX_CHUNK, Kind, cut
from protocols.errors import ConductorError, Infeasible, InvariantError, PortFailed
from tests.support.await_probe import Injection, Planted, enumerate_awaits
from tests.support.pipes import PipeEnd, pipe_pair

ALLOWED = (Planted, ChannelEnded, ConductorError, asyncio.CancelledError)


class Answers:
    """Answers a text: ``sleep 3`` after 3 s, ``fail``, ``bug``, ``big`` with 20 MiB, anything else with itself.

    Attributes:
        log: What began, ended and was cancelled, in order.
    """

    def __init__(self) -> None:
        self.log: list[str] = []

    async def __call__(self, body: bytes) -> bytes:
        name = body[:20].decode()
        self.log.append(f"begin {name}")
        try:
            await anyio.sleep(float(name.removeprefix("sleep")) if name.startswith("sleep") else 0)
        except anyio.get_cancelled_exc_class():
            self.log.append(f"cancelled {name}")
            raise
        self.log.append(f"end {name}")
        if name == "fail":
            raise Infeasible(what="answering", asked=2, available=1)
        if name == "bug":
            raise ZeroDivisionError("in user code")
        return bytes(20 * MAX_CHUNK) if name == "big" else body


class Pair:
    def __init__(self, channel: Channel, other: Channel, answers: Answers, end: PipeEnd, other_end: PipeEnd) -> None:
        self.channel, self.other, self.answers, self.end, self.other_end = channel, other, answers, end, other_end


@asynccontextmanager
async def pair() -> AsyncGenerator[Pair]:
    end, other_end = pipe_pair()
    answers = Answers()
    channel, other = Channel(end, answers), Channel(other_end, answers)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.run)
        tasks.start_soon(other.run)
        yield Pair(channel, other, answers, end, other_end)
        tasks.cancel_scope.cancel()


async def test_answers_come_in_their_own_order_and_in_both_directions() -> None:
    async with pair() as both, anyio.create_task_group() as tasks:
        done: list[bytes] = []

        async def call(channel: Channel, body: bytes) -> None:
            done.append(await channel.call(body))

        for channel, body in ((both.channel, b"sleep 3"), (both.other, b"sleep 2"), (both.channel, b"sleep 1")):
            tasks.start_soon(call, channel, body)
        await anyio.sleep(5)
        assert done == [b"sleep 1", b"sleep 2", b"sleep 3"]


async def test_a_huge_answer_holds_up_no_small_one() -> None:
    """A large result must not stand before the abort that would end what makes it."""
    async with pair() as both, anyio.create_task_group() as tasks:
        done: list[int] = []

        async def call(body: bytes) -> None:
            done.append(len(await both.channel.call(body)))

        tasks.start_soon(call, b"big")
        await checkpoint()
        await both.channel.call(b"first")  # the big answer is on its way
        assert both.answers.log[:2] == ["begin big", "end big"], "its answer came first"
        assert done == []
        await both.channel.call(b"second")
        assert done == []
        await anyio.sleep(1)
        assert done == [20 * MAX_CHUNK]


async def test_cancelling_a_call_cancels_it_there() -> None:
    async with pair() as both:
        with anyio.move_on_after(1):
            await both.channel.call(b"sleep 9")
        await anyio.sleep(0.1)
        assert both.answers.log == ["begin sleep 9", "cancelled sleep 9"]
        assert both.other._answering == {}
        assert await both.channel.call(b"next") == b"next"


async def test_a_call_cancelled_half_way_there_leaves_nothing() -> None:
    async with pair() as both:
        both.other_end.reading = False
        with anyio.move_on_after(1) as scope:
            await both.channel.call(bytes(20 * MAX_CHUNK))
        assert scope.cancelled_caught
        both.other_end.read_on()
        assert await both.channel.call(b"next") == b"next"
        assert both.other._halves == {}
        assert both.answers.log == ["begin next", "end next"]


async def test_a_slow_reader_holds_up_those_who_write() -> None:
    """Nothing piles up but what callers themselves hold: a queue without a bound is memory without a bound."""
    async with pair() as both, anyio.create_task_group() as tasks:
        both.other_end.reading = False
        for _ in range(50):
            tasks.start_soon(both.channel.call, bytes(MAX_CHUNK))
        await anyio.sleep(10)
        assert len(both.channel._outbox._chunks) <= 4
        both.other_end.read_on()
    # every call was answered


async def test_errors_come_as_what_they_are() -> None:
    async with pair() as both:
        with pytest.raises(Infeasible) as refused:
            await both.channel.call(b"fail")
        assert (refused.value.what, refused.value.asked, refused.value.available) == ("answering", 2, 1)
        with pytest.raises(PortFailed, match="ZeroDivisionError: in user code") as failed:
            await both.channel.call(b"bug")
        (note,) = failed.value.__notes__
        assert 'raise ZeroDivisionError("in user code")' in note, "the user's own line"


async def test_a_bad_message_harms_itself_only() -> None:
    """W17: one bad message dropped the whole batch of messages."""
    async with pair() as both, anyio.create_task_group() as tasks:
        done: list[object] = []

        async def call(body: bytes) -> None:
            try:
                done.append(await both.channel.call(body))
            except PortFailed as exc:
                done.append(exc)

        tasks.start_soon(call, b"sleep 1")
        tasks.start_soon(call, b"sleep 2")
        await anyio.sleep(0.1)
        for data in (
            *cut(Kind.FAILURE, 0, b"\xc1 no message"),  # the answer to the first
            *cut(Kind.RESULT, 12345, b"of a call that nobody made"),
            *cut(Kind.CANCEL, 12345, b""),
            b"\x77" + next(cut(Kind.PONG, 0, b""))[1:],  # of a kind that this version does not know
        ):
            await both.other_end.send(data)
        await anyio.sleep(5)
        bad, good = done
        assert isinstance(bad, PortFailed)
        assert good == b"sleep 2"


async def test_what_is_no_frame_ends_the_channel() -> None:
    """Behind it nothing can be read: whoever waits learns that at once."""
    async with pair() as both, anyio.create_task_group() as tasks:

        async def call() -> None:
            with pytest.raises(ChannelEnded):
                await both.channel.call(b"sleep 9")

        tasks.start_soon(call)
        await anyio.sleep(1)
        await both.other_end.send(b"print('hello') in the wrong place, and much more")
        await anyio.sleep(0.1)
        with pytest.raises(ChannelEnded):
            await both.channel.call(b"next")


async def test_the_end_of_the_other_side_ends_calls_and_answers() -> None:
    """I03: a caller blocked in a peer that is gone learns it."""
    async with pair() as both, anyio.create_task_group() as tasks:

        async def call() -> None:
            with pytest.raises(ChannelEnded):
                await both.channel.call(b"sleep 9")

        tasks.start_soon(call)
        await anyio.sleep(1)
        await both.end.aclose()
    assert both.answers.log == ["begin sleep 9", "cancelled sleep 9"]


async def test_one_that_refuses_has_nothing_running() -> None:
    async with pair() as both, anyio.create_task_group() as tasks:
        tasks.start_soon(both.channel.call, b"sleep 9")
        await anyio.sleep(1)
        await both.other.refuse()
        assert both.answers.log == ["begin sleep 9", "cancelled sleep 9"]
        tasks.start_soon(both.channel.call, b"late")
        await anyio.sleep(1)
        assert both.answers.log == ["begin sleep 9", "cancelled sleep 9"]
        tasks.cancel_scope.cancel()


async def test_a_cancellation_that_user_code_leaks_is_an_error_of_its_call() -> None:
    """I18: it must neither end the channel nor leave the caller waiting."""

    async def leak(_: bytes) -> bytes:
        raise anyio.get_cancelled_exc_class()

    end, other_end = pipe_pair()
    channel, other = Channel(end, leak), Channel(other_end, leak)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.run)
        tasks.start_soon(other.run)
        for _ in range(2):
            with pytest.raises(InvariantError):
                await channel.call(b"x")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("injection", ["cancel_task", "cancel_main", "cancel_scope", "fail"])
def test_wherever_it_is_disturbed_no_caller_waits_for_ever(injection: Injection) -> None:
    """W06: the virtual clock reports whoever would; a failure leaves as itself, or as the end of the channel."""

    async def program() -> str:
        async with pair() as both:
            for _ in range(2):
                await both.channel.call(b"sleep 1")
            await both.other.call(bytes(2 * MAX_CHUNK))
        return "done"

    trials = 0
    for trial in enumerate_awaits(program, injection):
        trials += 1
        if trial.outcome.value == "done" or trial.outcome.cancelled:
            continue
        leaves = _leaves(trial.outcome.error)
        assert leaves, trial.site
        assert all(isinstance(leaf, ALLOWED) for leaf in leaves), (trial.site, leaves)
    assert trials > 30


def _leaves(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [] if error is None else [error]

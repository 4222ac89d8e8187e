"""Questions that go in one message, and the answers that come back in one."""

from concurrent.futures import Future

import anyio
import pytest

pytest.importorskip("ray")

import ray.exceptions as rx
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from backends.ray.together import Together
from protocols.errors import ConductorError

pytestmark = pytest.mark.cluster


class Reference:
    """What Ray gives for a message that was sent."""

    def __init__(self, questions: list[int]) -> None:
        self.questions = questions
        self._future: Future[list[int]] = Future()

    def future(self) -> Future[list[int]]:
        return self._future

    def arrive(self, failure: Exception | None = None, count: int | None = None) -> None:
        if failure is None:
            self._future.set_result([question * 10 for question in self.questions[:count]])
        else:
            self._future.set_exception(failure)


class Desk:
    """Asks, and keeps what was sent and what came of it."""

    def __init__(self) -> None:
        self.sent: list[Reference] = []
        self.answers: dict[int, int] = {}
        self.failures: dict[int, str] = {}
        self.together: Together[int, int] = Together(self._send, "somebody", size=lambda question: question)
        self.refuses: Exception | None = None

    def _send(self, questions: list[int]) -> Reference:
        if self.refuses is not None:
            raise self.refuses
        self.sent.append(Reference(questions))
        return self.sent[-1]

    async def ask(self, question: int) -> None:
        try:
            self.answers[question] = await self.together.ask(question)
        except ConductorError as exc:
            self.failures[question] = str(exc)


async def ticks() -> None:
    for _ in range(8):
        await checkpoint()


@given(acts=st.lists(st.sampled_from(["ask", "arrive", "tick"]), max_size=30))
def test_every_question_is_asked_once_in_order_and_one_message_is_under_way(acts: list[str]) -> None:
    """A burst is one message; what comes while that is under way is the next one."""

    async def run() -> None:
        desk, asked, arrived = Desk(), 0, 0
        async with anyio.create_task_group() as tasks:
            for act in [*acts, *["tick", "arrive"] * (len(acts) + 1)]:
                if act == "ask":
                    tasks.start_soon(desk.ask, asked)
                    asked += 1
                elif act == "tick":
                    await ticks()
                elif arrived < len(desk.sent):
                    desk.sent[arrived].arrive()
                    arrived += 1
                assert len(desk.sent) - arrived in {0, 1}, "two are under way"
        assert [question for message in desk.sent for question in message.questions] == list(range(asked))
        assert desk.answers == {question: question * 10 for question in range(asked)}
        await ticks()
        assert not desk.together.busy

    anyio.run(run)


async def test_a_burst_is_one_message() -> None:
    """The controller of a run on Ray spent five messages on each group; thirty cost as much as one."""
    desk = Desk()
    async with anyio.create_task_group() as tasks:
        for question in range(30):
            tasks.start_soon(desk.ask, question)
        await ticks()
        assert [len(message.questions) for message in desk.sent] == [30]
        desk.sent[0].arrive()


async def test_what_was_asked_is_sent_though_nobody_waits_any_more() -> None:
    """A payload that is put while its lease is aborted must be released: what is said later comes later."""
    desk = Desk()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.ask, 0)
        await checkpoint()
        tasks.cancel_scope.cancel()
    await ticks()
    assert [message.questions for message in desk.sent] == [[0]]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.ask, 1)
        await ticks()
        assert len(desk.sent) == 1, "it waits for the one under way, whoever waits for that"
        desk.sent[0].arrive()
        await ticks()
        desk.sent[1].arrive()
    assert desk.answers == {1: 10}


async def test_a_message_carries_no_more_than_ray_takes_without_storing_it() -> None:
    """From 100 KiB on Ray stores it as an object, which a full store has no room for."""
    desk = Desk()
    async with anyio.create_task_group() as tasks:
        for question in (40_000, 20_000, 30_000, 200_000, 1):
            tasks.start_soon(desk.ask, question)
        for number in range(4):
            await ticks()
            desk.sent[number].arrive()
    assert [message.questions for message in desk.sent] == [[40_000, 20_000], [30_000], [200_000], [1]]


async def test_what_was_not_answered_is_asked_again_before_what_came_later() -> None:
    """An answer carries no more than a message either."""
    desk = Desk()
    async with anyio.create_task_group() as tasks:
        for question in range(4):
            tasks.start_soon(desk.ask, question)
        await ticks()
        tasks.start_soon(desk.ask, 4)
        await ticks()
        desk.sent[0].arrive(count=2)
        await ticks()
        assert set(desk.answers) == {0, 1}
        desk.sent[1].arrive()
    assert [message.questions for message in desk.sent] == [[0, 1, 2, 3], [2, 3, 4]]
    assert desk.answers == {question: question * 10 for question in range(5)}


@pytest.mark.parametrize("refuses", [rx.ObjectStoreFullError("full"), RuntimeError("wrong")])
async def test_a_message_that_cannot_be_sent_fails_those_who_asked_and_no_one_after_them(refuses: Exception) -> None:
    """They waited for ever, and so did everyone after them."""
    desk = Desk()
    desk.refuses = refuses
    async with anyio.create_task_group() as tasks:
        for question in (0, 1):
            tasks.start_soon(desk.ask, question)
        await ticks()
        assert set(desk.failures) == {0, 1}
        desk.refuses = None
        tasks.start_soon(desk.ask, 2)
        await ticks()
        desk.sent[0].arrive()
    assert desk.answers == {2: 20}


async def test_a_message_that_is_lost_fails_all_that_was_asked_in_it_and_nothing_else() -> None:
    desk = Desk()
    async with anyio.create_task_group() as tasks:
        for question in (0, 1):
            tasks.start_soon(desk.ask, question)
        await ticks()
        tasks.start_soon(desk.ask, 2)
        await ticks()
        desk.sent[0].arrive(rx.ActorUnavailableError("no answer", None))
        await ticks()
        desk.sent[1].arrive()
    assert set(desk.failures) == {0, 1}
    assert all(text.startswith("worker somebody is lost: ") for text in desk.failures.values())
    assert desk.answers == {2: 20}

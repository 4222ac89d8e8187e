"""Calls of one worker: which go alone, which go together, and what each comes to."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import anyio
import pytest

pytest.importorskip("ray")

import ray.exceptions as rx
from anyio.lowlevel import checkpoint

from backends.ray.calling import Calls
from backends.ray.mailbox import Mailbox
from backends.ray.messages import TAKEN_BACK, Call, Reply, as_bytes, call_of, calls_of
from backends.ray.together import MESSAGE_BYTES
from protocols.errors import ConductorError

pytestmark = pytest.mark.cluster


class Reference:
    """What Ray gives for a call: it can be awaited, and has a future."""

    def __init__(self) -> None:
        self.done: Future[Any] = Future()
        self._event = anyio.Event()

    def end(self, result: Any) -> None:
        self.done.set_result(result)
        self._event.set()

    def future(self) -> Future[Any]:
        return self.done

    def __await__(self) -> Any:
        yield from self._event.wait().__await__()
        return self.done.result()


class Method:
    """A method of the actor, which notes how it is called."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read
        self.calls: list[Any] = []
        self.references: list[Reference] = []
        self.refuses: Exception | None = None

    def remote(self, argument: Any) -> Reference:
        if self.refuses is not None:
            raise self.refuses
        self.calls.append(self._read(argument))
        self.references.append(Reference())
        return self.references[-1]


class Actor:
    """The worker."""

    def __init__(self) -> None:
        self.call, self.calls, self.withdraw = Method(call_of), Method(calls_of), Method(int)


class Caller:
    """Makes calls, and keeps what they came to."""

    def __init__(self) -> None:
        self.actor = Actor()
        self.calls = Calls(self.actor, "reward/0")
        self.heard: dict[str, Reply] = {}
        self.failed: dict[str, str] = {}

    async def ask(self, name: str, method: str = "grade") -> None:
        try:
            self.heard[name] = await self.calls.call(method, name.encode())
        except ConductorError as exc:
            self.failed[name] = str(exc)


def names(calls: list[Call]) -> list[str]:
    return [args.decode() for _, _, args in calls]


async def ticks() -> None:
    for _ in range(8):
        await checkpoint()


async def test_the_first_goes_alone_and_those_beside_it_together() -> None:
    """The shortest way for one, and few messages for many; who comes meanwhile goes with the next message."""
    caller = Caller()
    async with anyio.create_task_group() as tasks:
        for name in "abcd":
            tasks.start_soon(caller.ask, name)
        await ticks()
        tasks.start_soon(caller.ask, "e")
        tasks.start_soon(caller.ask, "f", "abort")
        await ticks()
        assert names(caller.actor.call.calls) == ["a", "f"], "an abort waits for nobody"
        assert [names(message) for message in caller.actor.calls.calls] == [["b", "c", "d"]]
        for number in (3, 1, 2):  # an answer may come before its message is acknowledged
            caller.calls.take(number, (f"{number}".encode(), None))
        caller.calls.take(99, TAKEN_BACK)
        caller.actor.calls.references[0].end([None] * 3)
        await ticks()
        assert caller.heard == {"b": (b"1", None), "c": (b"2", None), "d": (b"3", None)}
        assert [names(message) for message in caller.actor.calls.calls[1:]] == [["e"]]
        caller.actor.calls.references[1].end([None])
        await ticks()
        caller.calls.take(4, (b"4", None))
        for reference, name in zip(caller.actor.call.references, "af", strict=True):
            reference.end(as_bytes((name.encode(), None)))
        await ticks()
        tasks.start_soon(caller.ask, "g")
        await ticks()
        assert names(caller.actor.call.calls) == ["a", "f", "g"], "nothing is under way"
        caller.actor.call.references[2].end(as_bytes((b"g", None)))
    assert set(caller.heard) == set("abcdefg")


async def test_a_call_that_waits_in_line_is_withdrawn_by_its_number() -> None:
    """It is sent all the same, and the worker knows by then that nobody wants it."""
    caller = Caller()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "a")
        tasks.start_soon(caller.ask, "b")
        await checkpoint()
        await checkpoint()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await ticks()
            assert sorted(caller.actor.withdraw.calls) == [0, 1]
            assert [names(message) for message in caller.actor.calls.calls] == [["b"]]
            for reference in caller.actor.withdraw.references:
                reference.end(None)
    assert not caller.heard


async def test_what_cannot_be_sent_says_so() -> None:
    caller = Caller()
    caller.actor.call.refuses = caller.actor.calls.refuses = rx.ObjectStoreFullError("full")
    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(caller.ask, name)
    assert set(caller.failed) == set("abc")


async def test_mail_is_no_more_than_a_message_carries_and_none_of_it_is_lost() -> None:
    """What is larger comes with the next one, at once."""
    box = Mailbox()
    for number in range(5):
        box.ask((number, "inference", "generate", b"x" * (MESSAGE_BYTES // 2)))
        box.answer(number, (b"y" * (MESSAGE_BYTES // 2), None))
    taken = [await box.take(1.0) for _ in range(5)]
    assert [(len(questions), len(answers)) for questions, answers in taken] == [(2, 0), (2, 0), (1, 1), (0, 2), (0, 2)]
    assert [number for questions, _ in taken for number, *_ in questions] == list(range(5))
    assert [number for _, answers in taken for number, _ in answers] == list(range(5))
    began = anyio.current_time()
    assert await box.take(1.0) == ([], [])
    assert anyio.current_time() - began == 1.0, "it is the sign of life"


async def test_mail_has_nothing_beside_what_leaves_no_room_for_it() -> None:
    """What came last went as well, however large: together they became an object, which a full store refuses."""
    box = Mailbox()
    for number in range(2):
        box.ask((number, "inference", "generate", b"x" * (MESSAGE_BYTES * 2 // 3)))
        box.answer(number, (b"y" * (MESSAGE_BYTES * 2 // 3), None))
    taken = [await box.take(1.0) for _ in range(4)]
    assert [(len(questions), len(answers)) for questions, answers in taken] == [(1, 0), (1, 0), (0, 1), (0, 1)]

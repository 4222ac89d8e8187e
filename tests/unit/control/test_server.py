"""The socket of a run, and clients that are slow, hostile, half gone or too many."""

import json
import os
import socket
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import structlog
from anyio.abc import SocketStream
from structlog.testing import CapturingLogger

from conductor.control import client, server
from conductor.control.messages import Reply, Request
from conductor.control.place import LONGEST, SOCKET, find
from conductor.control.server import open_control
from protocols.errors import PortFailed

pytestmark = pytest.mark.real_time


async def at_once(request: Request) -> Reply:
    return Reply(done=request.command)


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


class Served:
    """A folder that is served, and what was logged meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.captured = CapturingLogger()
        self.log: Any = structlog.wrap_logger(self.captured, processors=[structlog.processors.KeyValueRenderer()])

    @property
    def path(self) -> Path:
        path = find(self.folder)
        assert path is not None
        return path

    @property
    def logged(self) -> str:
        return "\n".join(str(call) for call in self.captured.calls)

    async def connect(self) -> SocketStream:
        return await anyio.connect_unix(self.path)

    async def ask(self, line: bytes) -> dict[str, Any] | None:
        async with await self.connect() as stream:
            await stream.send(line)
            return await answer_on(stream)


async def answer_on(stream: SocketStream) -> dict[str, Any] | None:
    data = b""
    while not data.endswith(b"\n"):
        try:
            data += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return None
    return json.loads(data)


STATUS = b'{"command": "status"}\n'


@asynccontextmanager
async def serving(folder: Path, answer: Callable[[Request], Awaitable[Reply]] = at_once) -> AsyncGenerator[Served]:
    served = Served(folder)
    with anyio.fail_after(20.0):
        async with open_control(str(folder), answer, served.log):
            while True:
                with suppress(OSError, AssertionError):
                    async with await served.connect():
                        break
                await anyio.sleep(0.002)
            yield served


async def test_it_is_for_its_user_alone_and_gone_afterwards(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        mode = served.path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        assert await served.ask(STATUS) == {"done": "status"}
    assert not left_in(tmp_path)
    assert client.ask(tmp_path, Request(command="status"), patience_s=1.0) is None


async def test_one_connection_may_ask_more_than_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, await served.connect() as stream:
        for _ in range(3):
            await stream.send(STATUS)
            assert await answer_on(stream) == {"done": "status"}


async def test_a_path_that_is_too_long_is_named_by_the_folder(tmp_path: Path) -> None:
    """Linux takes 107 bytes; a run deep in a file system must be asked all the same."""
    folder = tmp_path / "/".join(["deep" * 20] * 2)
    folder.mkdir(parents=True)
    async with serving(folder) as served:
        assert len(os.fsencode(folder / SOCKET)) > LONGEST
        assert served.path.parent != folder
        assert stat.S_IMODE(served.path.parent.stat().st_mode) == 0o700
        reply = await anyio.to_thread.run_sync(lambda: client.ask(folder, Request(command="why"), patience_s=5.0))
        assert reply == Reply(done="why")
        short = served.path.parent
    assert not left_in(folder)
    assert not short.exists()


async def test_what_a_dead_run_left_is_replaced(tmp_path: Path) -> None:
    """I74: after a crash the address was in use. Here it is a path, and nothing listens on a port of the network."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / SOCKET))
    assert client.ask(tmp_path, Request(command="status"), patience_s=1.0) is None
    async with open_control(str(tmp_path), at_once, Served(tmp_path).log):
        reply = None
        while reply is None:
            reply = await anyio.to_thread.run_sync(
                lambda: client.ask(tmp_path, Request(command="status"), patience_s=5.0)
            )
        assert reply == Reply(done="status")
    assert not left_in(tmp_path)


async def test_the_socket_of_a_living_run_is_left_to_it(tmp_path: Path) -> None:
    """A second controller, which its ledger refuses, must not take the first one's socket with it."""
    async with serving(tmp_path) as served:
        other = Served(tmp_path)
        async with open_control(str(tmp_path), at_once, other.log):
            while "control.taken" not in other.logged:  # noqa: ASYNC110 - a log line appears
                await anyio.sleep(0.002)
        assert await served.ask(STATUS) == {"done": "status"}


@pytest.mark.parametrize(
    "line",
    [
        b"hello\n",
        b'{"command": "explode"}\n',
        b'{"command": "status", "more": 1}\n',
        b"[1, 2]\n",
        b"\xff\xfe\n",
        b"\n",
        b'{"command": ' + b" " * 5000 + b'"status"}\n',
    ],
)
async def test_nonsense_is_answered_and_the_next_one_is_attended(tmp_path: Path, line: bytes) -> None:
    async with serving(tmp_path) as served:
        reply = await served.ask(line)
        assert reply is not None
        assert reply["error"].startswith("this is no request of at most 4096 bytes: ")
        assert await served.ask(STATUS) == {"done": "status"}
        assert not served.captured.calls


async def test_a_client_that_half_closes_gets_its_answer(tmp_path: Path) -> None:
    """``nc -U`` ends its side as soon as it has sent."""
    async with serving(tmp_path) as served, await served.connect() as stream:
        await stream.send(STATUS)
        await stream.send_eof()
        assert await answer_on(stream) == {"done": "status"}


async def test_a_client_that_goes_before_the_answer_harms_nobody(tmp_path: Path) -> None:
    go = anyio.Event()

    async def slowly(request: Request) -> Reply:
        if request.command == "why":
            await go.wait()
            return Reply(done="x" * 10_000_000)
        return Reply(done=request.command)

    async with serving(tmp_path, slowly) as served:
        for _ in range(5):
            async with await served.connect() as stream:
                await stream.send(b'{"command": "why"}\n')
        async with await served.connect() as cut:
            await cut.send(b'{"comm')
        go.set()
        assert await served.ask(STATUS) == {"done": "status"}
        assert not served.captured.calls


async def test_silent_and_deaf_clients_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that say nothing, those that send a byte at a time, and those that take no answer."""
    monkeypatch.setattr(server, "_CLIENT_S", 0.2)

    async def huge(request: Request) -> Reply:
        return Reply(done="x" * 10_000_000 if request.command == "why" else "small")

    async with serving(tmp_path, huge) as served, anyio.create_task_group() as group:

        async def dribble(stream: SocketStream) -> None:
            with suppress(anyio.BrokenResourceError):
                while True:
                    await stream.send(b"{")
                    await anyio.sleep(0.05)
            ended.append(stream)

        ended: list[SocketStream] = []
        silent, deaf, slow = [await served.connect() for _ in range(3)]
        await deaf.send(b'{"command": "why"}\n')
        group.start_soon(dribble, slow)
        assert await served.ask(STATUS) == {"done": "small"}
        assert await answer_on(silent) is None
        await anyio.sleep(0.4)
        assert await answer_on(deaf) is None
        assert ended == [slow]
        for stream in (silent, deaf, slow):
            await stream.aclose()


async def test_more_clients_than_it_attends_to_wait_outside(tmp_path: Path) -> None:
    """Whoever holds connections open costs a bounded number of tasks, and the next one its turn."""
    async with serving(tmp_path) as served:
        held = [await served.connect() for _ in range(server._CLIENTS)]
        for stream in held:  # each is attended to
            await stream.send(STATUS)
            assert await answer_on(stream) == {"done": "status"}
        async with await served.connect() as waiting:
            await waiting.send(STATUS)
            with anyio.move_on_after(0.2) as scope:
                await answer_on(waiting)
            assert scope.cancelled_caught
            await held.pop().aclose()
            assert await answer_on(waiting) == {"done": "status"}
        for stream in held:
            await stream.aclose()


async def test_an_answer_that_fails_ends_its_conversation_and_no_other(tmp_path: Path) -> None:
    async def fails(request: Request) -> Reply:
        if request.command == "why":
            raise ZeroDivisionError
        return Reply(done=request.command)

    async with serving(tmp_path, fails) as served:
        assert await served.ask(b'{"command": "why"}\n') is None
        assert "ZeroDivisionError" in served.logged
        assert await served.ask(STATUS) == {"done": "status"}


async def test_a_folder_that_takes_no_socket_costs_the_socket_and_not_the_run(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with open_control(str(tmp_path / "missing"), at_once, served.log):
        while "control.failed" not in served.logged:  # noqa: ASYNC110 - a log line appears
            await anyio.sleep(0.002)


async def test_an_error_of_the_run_comes_out_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with serving(tmp_path):
            raise ZeroDivisionError
    assert not left_in(tmp_path)


async def test_a_client_is_told_of_a_run_that_ends_before_it_answers(tmp_path: Path) -> None:
    asked = anyio.Event()

    async def never(_request: Request) -> Reply:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def ask() -> None:
        with pytest.raises(PortFailed, match="the run ended before it answered"):
            await anyio.to_thread.run_sync(lambda: client.ask(tmp_path, Request(command="status"), patience_s=10.0))

    async with anyio.create_task_group() as group, serving(tmp_path, never):
        group.start_soon(ask)
        await asked.wait()


async def test_a_client_does_not_wait_for_ever(tmp_path: Path) -> None:
    async def never(_request: Request) -> Reply:
        await anyio.sleep_forever()
        raise AssertionError

    async with serving(tmp_path, never):
        with pytest.raises(PortFailed, match=r"did not answer within 0.1 s"):
            await anyio.to_thread.run_sync(lambda: client.ask(tmp_path, Request(command="status"), patience_s=0.1))

"""Serves the socket of a run. Nothing that a client does slows the run down, and nothing ends it.

At most ``_CLIENTS`` are attended to at once, the others wait outside; what a client sends and takes is bounded in size
and in time. Where the socket cannot be served, the run goes on without it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio.abc import SocketListener, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from structlog.typing import FilteringBoundLogger

from conductor.control.messages import Reply, Request, encode
from conductor.control.place import Bound, Taken, bind, unbind
from conductor.disk import on_disk
from protocols.aio import open_tasks, owned
from protocols.errors import DeadlineExceeded, PortFailed

Answer = Callable[[Request], Awaitable[Reply]]

_CLIENTS = 8
_LINE = 4096  # bytes of a request
_CLIENT_S = 10.0  # to send a request, and to take an answer
_PLACE_S = 10.0  # to make the socket, and to remove it
_BREATH_S = 1.0  # after something failed that is not the client's doing: there may be no more descriptors


@asynccontextmanager
async def open_control(run_dir: str | None, answer: Answer, log: FilteringBoundLogger) -> AsyncGenerator[None]:
    """Serve the socket of a run while the block runs; do nothing where there is no folder.

    Args:
        run_dir: The folder of the run.
        answer: Answers a request; it may take its time.
        log: Is told what goes wrong.
    """
    async with open_tasks() as tasks:
        if run_dir is not None:
            tasks.start_soon(_serve, Path(run_dir), answer, log, name="control")
        yield
        tasks.cancel_scope.cancel()


async def _serve(run_dir: Path, answer: Answer, log: FilteringBoundLogger) -> None:
    try:
        await owned("control", partial(_bind_and_listen, run_dir, answer, log))
    except Taken:
        log.warning("control.taken", run_dir=str(run_dir), why="another process answers for this folder")
    except Exception as exc:  # noqa: BLE001 - the run goes on without it
        log.warning("control.failed", error=type(exc).__name__, message=str(exc))


async def _bind_and_listen(run_dir: Path, answer: Answer, log: FilteringBoundLogger) -> None:
    made: list[Bound] = []  # filled in the thread: a cancellation must not lose what was made there
    try:
        await on_disk("making the control socket", _PLACE_S, lambda: made.append(bind(run_dir)))
        await _listen(made[0], answer, log)
    finally:
        if made:
            with anyio.move_on_after(_PLACE_S, shield=True):
                await _remove(made[0], log)


async def _remove(bound: Bound, log: FilteringBoundLogger) -> None:
    try:
        await on_disk("removing the control socket", _PLACE_S, lambda: unbind(bound))
    except (OSError, DeadlineExceeded) as exc:
        log.warning("control.left", path=str(bound.path), message=str(exc))
    except BaseException:
        unbind(bound)  # the thread may not have begun; what it did already is not done again
        raise


async def _listen(bound: Bound, answer: Answer, log: FilteringBoundLogger) -> None:
    turn = anyio.Lock()  # one of them waits for the next client, the others attend to theirs
    async with await SocketListener.from_socket(bound.listening) as listener, anyio.create_task_group() as clerks:
        for number in range(_CLIENTS):
            clerks.start_soon(_attend, listener, turn, answer, log, name=f"control {number}")


async def _attend(listener: SocketListener, turn: anyio.Lock, answer: Answer, log: FilteringBoundLogger) -> None:
    """Attend to one client after the other."""
    while True:
        try:
            await owned("control client", partial(_attend_once, listener, turn, answer))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # it is gone
        except Exception as exc:  # noqa: BLE001 - the next one is attended to
            log.warning("control.failed", error=type(exc).__name__, message=str(exc))
            await anyio.sleep(_BREATH_S)


async def _attend_once(listener: SocketListener, turn: anyio.Lock, answer: Answer) -> None:
    async with turn:
        try:
            stream = await listener.accept()
        except anyio.BrokenResourceError as exc:
            raise PortFailed(f"no connection could be accepted: {exc.__cause__}") from exc
    await _converse(stream, answer)


async def _converse(stream: SocketStream, answer: Answer) -> None:
    """Answer one request after the other until the client falls silent, goes, or sends what is none."""
    async with stream:
        lines = BufferedByteReceiveStream(stream)
        while (line := await _line(lines)) is not None:
            try:
                request = msgspec.json.decode(line, type=Request)
            except msgspec.MsgspecError as exc:
                await _send(stream, Reply(error=f"this is no request of at most {_LINE} bytes: {exc}"))
                return
            await _send(stream, await answer(request))


async def _line(lines: BufferedByteReceiveStream) -> bytes | None:
    """Return the next line, of one that is too long its beginning; None: the client is gone or says nothing."""
    with anyio.move_on_after(_CLIENT_S):
        try:
            line = await lines.receive_until(b"\n", _LINE)
            return line[:_LINE]  # more may have come at once
        except anyio.DelimiterNotFound:
            return lines.buffer[:_LINE]
        except (anyio.IncompleteRead, anyio.EndOfStream):
            pass
    return None


async def _send(stream: SocketStream, reply: Reply) -> None:
    with anyio.move_on_after(_CLIENT_S) as scope:
        await stream.send(encode(reply))
    if scope.cancelled_caught:
        raise anyio.BrokenResourceError

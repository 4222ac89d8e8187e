"""Answers token by token, as server-sent events."""

import math
from collections.abc import Awaitable, Callable, Sequence

import anyio

from backends.engines._serve.served import Made
from backends.engines._serve.web import Send
from backends.engines.torch.engine import OnToken
from protocols.aio import owned
from protocols.errors import ConductorError

DONE = b"[DONE]"
"""Ends every stream."""

_Item = tuple[int, int, float] | list[Made] | ConductorError


async def stream_tokens(
    send: Send,
    generate: Callable[[OnToken], Awaitable[list[Made]]],
    *,
    each: Callable[[int, int, float], bytes],
    last: Callable[[Sequence[Made]], Sequence[bytes]],
    failed: Callable[[ConductorError], bytes],
) -> None:
    """Send an event for each token, those that close the answers, and the mark of the end.

    Args:
        send: Sends one event.
        generate: Does the work, and is given whom to tell of tokens.
        each: Makes an event of a token: number of the answer, id, log-probability.
        last: Makes the closing events of the finished answers.
        failed: Makes the event of a failure.
    """
    sender, receiver = anyio.create_memory_object_stream[_Item](math.inf)  # no longer than the answers

    def told(number: str, token: int, logprob: float) -> None:
        sender.send_nowait((int(number), token, logprob))

    async def work() -> None:
        with sender:
            try:
                sender.send_nowait(await generate(told))
            except ConductorError as exc:
                sender.send_nowait(exc)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(owned, "streamed request", work, name="streamed request")
        async with receiver:
            async for item in receiver:
                for event in _events(item, each, last, failed):
                    await send(event)
    await send(DONE)


def _events(
    item: _Item,
    each: Callable[[int, int, float], bytes],
    last: Callable[[Sequence[Made]], Sequence[bytes]],
    failed: Callable[[ConductorError], bytes],
) -> Sequence[bytes]:
    match item:
        case tuple():
            return (each(*item),)
        case list():
            return last(item)
        case _:
            return (failed(item),)

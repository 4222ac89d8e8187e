"""An adapter's opener, and the same adapter behind its codec: what every contract suite runs twice."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ParamSpec, TypeVar

from protocols.wire import over_codec

Args = ParamSpec("Args")
P = TypeVar("P")


def wired(
    port: type[P], opened: Callable[Args, AbstractAsyncContextManager[P]]
) -> Callable[Args, AbstractAsyncContextManager[P]]:
    """Return an opener whose every argument, result and error is encoded and decoded."""

    @asynccontextmanager
    async def open_wired(*args: Args.args, **options: Args.kwargs) -> AsyncGenerator[P]:
        async with opened(*args, **options) as implementation:
            yield over_codec(port, implementation)

    return open_wired

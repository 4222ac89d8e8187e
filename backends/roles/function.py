"""A function of the user's own as a role: ``kind = "function"``, ``options = { function = "feed.py:feed" }``.

It runs beside the job, and what it does is its own affair: it calls other roles, it puts into queues.
"""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from backends._functions import FunctionNotFound, find_function, user_error
from protocols.adapters import Host
from protocols.aio import NoResult, contained, open_tasks, owned
from protocols.errors import ConductorError, PortFailed, Problem
from protocols.messages import Message
from protocols.sections import Site


class Config(Message, frozen=True, kw_only=True):
    """Options of a function.

    Attributes:
        function: A coroutine function, ``module:name`` or ``path.py:name``: called with the ``Host``, and with
            ``options`` by name.
        options: Keyword arguments.
    """

    function: str
    options: dict[str, Any] = {}


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Find a function that cannot be imported, or is none that can be ended."""
    try:
        function = find_function(cfg.function, site.job_dir)
    except FunctionNotFound as exc:
        return (exc.problem("role.options.function", cfg.function),)
    if inspect.iscoroutinefunction(function):
        return ()
    why, mend = "it is no coroutine function, so nothing could end it", "write it as async def"
    return (Problem(field="role.options.function", value=repr(cfg.function), why=why, mend=mend),)


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[object]:  # noqa: A001 - the adapters' common name
    """Start the function; it is cancelled with the block. One that returns is done, and its worker stays.

    Raises (into the block):
        ConductorError: The function raised it.
        PortFailed: It raised anything else.
    """
    function = find_function(cfg.function, host.site.job_dir)
    async with open_tasks() as tasks:
        name = f"function {cfg.function}"
        tasks.start_soon(owned, name, partial(_run, cfg.function, partial(function, host, **cfg.options)), name=name)
        yield object()
        tasks.cancel_scope.cancel()


async def _run(name: str, function: Callable[[], Awaitable[object]]) -> None:
    try:
        await contained(function)
    except ConductorError:
        raise
    except NoResult as exc:
        raise PortFailed(f"{name} cancelled itself") from exc
    except (Exception, SystemExit) as exc:
        raise PortFailed(f"{name} raised {user_error(exc)}") from exc

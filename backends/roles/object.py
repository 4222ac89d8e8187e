"""A class of the user's own as a role: ``kind = "object"``, ``options = { make = "judge.py:Judge" }``.

Its public coroutine methods are what others may call.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from protocols.adapters import Host, load_object
from protocols.errors import Problem
from protocols.messages import Message
from protocols.sections import Site


class Config(Message, frozen=True, kw_only=True):
    """Options of an object.

    Attributes:
        make: What makes it, ``module:name`` or ``path.py:name``: called with the ``Host``, and with ``options`` by
            name. An async context manager is entered, and gives it.
        options: Keyword arguments.
    """

    make: str
    options: dict[str, Any] = {}


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Find a class that cannot be imported."""
    try:
        load_object(cfg.make, site.job_dir)
    except Exception as exc:  # noqa: BLE001 - a user's module may raise anything while it is imported
        why = f"it cannot be imported: {type(exc).__name__}: {exc}"
        mend = "name it module:name, or path.py:name next to the job file"
        return (Problem(field="role.options.make", value=repr(cfg.make), why=why, mend=mend),)
    return ()


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[object]:  # noqa: A001 - the adapters' common name
    """Make it; it is closed with the block where it is an async context manager."""
    made = load_object(cfg.make, host.site.job_dir)(host, **cfg.options)
    if isinstance(made, AbstractAsyncContextManager):
        async with made as workload:
            yield workload
    else:
        yield made

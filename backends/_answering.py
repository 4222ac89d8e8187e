"""A user's own workload behind ``RolePort``: its public coroutine methods, by their own annotations."""

import inspect
import typing
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from anyio.lowlevel import checkpoint

from protocols.aio import NoResult, contained
from protocols.errors import ConductorError, PortFailed, UserError
from protocols.messages import WorkerId
from protocols.roles import RolePort


class Answering:
    """Answers calls with the methods of ``workload``.

    Args:
        worker: Its name, for errors.
        workload: What the user's adapter gave.
    """

    def __init__(self, worker: WorkerId, workload: object) -> None:
        self._worker = worker
        self._workload = workload

    async def answer(self, method: str, args: bytes) -> bytes:
        """Call a method; see ``RolePort.answer``."""
        await checkpoint()
        found = self._method(method)
        try:
            given = msgspec.msgpack.decode(args, type=_types(found))
        except msgspec.ValidationError as exc:
            raise UserError(f"{self._worker}.{method} does not take that: {exc}") from exc
        try:
            return msgspec.msgpack.encode(await contained(partial(found, *given)))
        except ConductorError:
            raise
        except NoResult as exc:
            raise PortFailed(f"{self._worker}.{method} was cancelled from within") from exc
        except Exception as exc:
            raise PortFailed(f"{self._worker}.{method} failed: {type(exc).__name__}: {exc}") from exc

    def _method(self, name: str) -> Callable[..., Awaitable[Any]]:
        found = None if name.startswith("_") else getattr(self._workload, name, None)
        if not inspect.iscoroutinefunction(found):
            raise UserError(f"{self._worker} has no public coroutine method {name!r}")
        return found


def _types(method: Callable[..., Awaitable[Any]]) -> Any:
    """Return the type of the arguments of a method, all of them by position; what is not annotated may be anything."""
    hints = typing.get_type_hints(method)
    kinds = tuple(hints.get(name, Any) for name in inspect.signature(method).parameters)
    return tuple.__class_getitem__(kinds or ((),))


_: type[RolePort] = Answering

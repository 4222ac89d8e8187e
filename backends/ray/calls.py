"""Waiting for Ray: what its errors mean, and what becomes of a call that nobody waits for any more."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import ray
import ray.exceptions as rx
import structlog

from backends.ray.failures import translated
from protocols.errors import ConductorError

log = structlog.get_logger(__name__)

T = TypeVar("T")

ABORT_DEADLINE_S = 5.0


async def result_of(ref: Any, name: str) -> Any:
    """Return what a reference holds, once it does.

    Cancelling: what was called goes on.

    Args:
        ref: An ``ObjectRef``.
        name: Whoever was called, for people.

    Raises:
        ConductorError: What an error of Ray means.
    """
    try:
        return await ref
    except rx.RayError as exc:
        raise translated(name, exc) from exc


async def asked(question: Callable[[], T]) -> T:
    """Return what a blocking question to the cluster gives. It changes nothing.

    Cancelling: nobody waits for the answer, which may take a minute where the cluster is gone.

    Raises:
        ConductorError: What an error of Ray means.
    """
    try:
        return await anyio.to_thread.run_sync(question, abandon_on_cancel=True)
    except rx.RayError as exc:
        raise translated("the cluster", exc) from exc


async def carried(sent: Awaitable[T], name: str, abort: Callable[[], Any]) -> T:
    """Return what a call gives; one that nobody waits for is aborted.

    Cancelling: the abort is submitted before anything is awaited, so that neither a second cancellation nor the
    deadline can take it back, and is waited for. ``ray.cancel`` is for what stays unconfirmed: after a confirmed abort
    it would cut the clean-up of the worker itself.

    Args:
        sent: The call's reference, or what waits for its answer.
        name: Whoever was called.
        abort: Submits the abort; its reference is ready once nothing of the call runs.

    Raises:
        ConductorError: What an error of Ray means.
    """
    try:
        return await result_of(sent, name)
    except ConductorError:
        raise
    except BaseException:
        await _abort(sent, name, abort())  # noqa: ASYNC102 - shielded there, for a bounded time
        raise


async def _abort(sent: Any, name: str, stopped: Any) -> None:
    confirmed = False
    try:
        with anyio.move_on_after(ABORT_DEADLINE_S, shield=True):
            await stopped
            confirmed = True
    except rx.RayActorError:
        confirmed = True  # it is dead and runs nothing
    except rx.RayError as exc:
        log.warning("abort.failed", worker_id=name, error=type(exc).__name__)
    finally:
        if not confirmed:
            log.warning("abort.unconfirmed", worker_id=name, deadline_s=ABORT_DEADLINE_S)
            if isinstance(sent, ray.ObjectRef):
                with suppress(rx.RayError, ValueError, TypeError):  # it has ended, or cannot be cancelled
                    ray.cancel(sent, recursive=False)

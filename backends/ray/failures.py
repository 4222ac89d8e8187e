"""What Ray raises, and what it means here: the one place that knows."""

from collections.abc import Callable
from types import MappingProxyType

import ray.exceptions as rx

from protocols.errors import ConductorError, InvariantError, PortFailed, Transient, UserError, WorkerLost

_NO_MEMORY = "running low on memory"
_ADVICE = " Some common causes include"

Make = Callable[[str, Exception], ConductorError]
"""Makes the error, of the name of whoever was called and of what Ray raised."""


def _lost(name: str, error: Exception) -> ConductorError:
    return WorkerLost(worker=name, cause=told(error), preempted=getattr(error, "preempted", False))


def _payload_lost(_: str, error: Exception) -> ConductorError:
    return WorkerLost(worker="payload store", cause=told(error))


def _later(name: str, error: Exception) -> ConductorError:
    return Transient(f"{name}: {told(error)}")


def _failed(name: str, error: Exception) -> ConductorError:
    return PortFailed(f"{name}: {told(error)}")


def _refused(name: str, error: Exception) -> ConductorError:
    return UserError(f"{name}: {told(error)}")


def _wrong(name: str, error: Exception) -> ConductorError:
    return InvariantError(f"{name}: {type(error).__name__}: {error}")


MEANING: MappingProxyType[type[Exception], Make] = MappingProxyType(
    {
        # a process, a node or its place is gone
        rx.RayActorError: _lost,
        rx.WorkerCrashedError: _lost,
        rx.NodeDiedError: _lost,
        rx.OutOfMemoryError: _lost,
        rx.ActorPlacementGroupRemoved: _lost,
        rx.TaskPlacementGroupRemoved: _lost,
        rx.AsyncioActorExit: _lost,
        rx.ActorHandleNotFoundError: _lost,
        # an object is gone
        rx.ObjectLostError: _payload_lost,
        rx.PlasmaObjectNotAvailable: _payload_lost,
        # it may go better later
        rx.ObjectStoreFullError: _later,
        rx.OutOfDiskError: _later,
        rx.PendingCallsLimitExceeded: _later,
        rx.GetTimeoutError: _later,
        rx.RpcError: _later,
        # nothing makes up for it
        rx.LocalRayletDiedError: _failed,
        rx.ActorUnschedulableError: _failed,
        rx.TaskUnschedulableError: _failed,
        rx.RuntimeEnvSetupError: _failed,
        rx.RaySystemError: _failed,
        rx.RayTaskError: _failed,
        rx.AuthenticationError: _refused,
        # nobody here asks for what leads to these
        rx.TaskCancelledError: _wrong,
        rx.ActorAlreadyExistsError: _wrong,
        rx.CrossLanguageError: _wrong,
        rx.ObjectRefStreamEndOfStreamError: _wrong,
        rx.OufOfBandObjectRefSerializationException: _wrong,
        rx.UnserializableException: _wrong,
        rx.UserCodeException: _wrong,
        rx.RayError: _wrong,
    }
)


def meaning_of(kind: type[Exception]) -> type[Exception]:
    """Return the nearest class of the table; ``RayError`` for what this version of the table has not heard of."""
    return next(base for base in kind.__mro__ if base in MEANING)


def translated(name: str, error: rx.RayError) -> ConductorError:
    """Return what an error of Ray means.

    Args:
        name: Whoever was called.
        error: What was raised.
    """
    return MEANING[meaning_of(type(error))](name, error)


def told(error: BaseException) -> str:
    """Return the last line of what Ray says: why, after pages of what and where; of memory, before advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    short = [line for line in lines if _NO_MEMORY in line]
    return (short or lines or [type(error).__name__])[-1].partition(_ADVICE)[0]

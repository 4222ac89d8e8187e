"""What Ray raises, and what it means."""

from collections.abc import Iterator

import pytest

pytest.importorskip("ray")

import ray.exceptions as rx

from backends.ray.failures import MEANING, meaning_of, translated
from protocols.errors import ConductorError, InvariantError, PortFailed, Transient, WorkerLost

pytestmark = pytest.mark.cluster


def _kinds(base: type[Exception]) -> Iterator[type[Exception]]:
    for kind in base.__subclasses__():
        if kind.__module__ == rx.__name__:
            yield kind
            yield from _kinds(kind)


KINDS = sorted(set(_kinds(rx.RayError)), key=lambda kind: kind.__name__)


def test_the_walk_finds_what_there_is() -> None:
    named = {one for one in vars(rx).values() if isinstance(one, type) and issubclass(one, rx.RayError)}
    assert named - {rx.RayError} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_exception_of_ray_has_a_meaning(kind: type[Exception]) -> None:
    """An error that nobody mapped would cross the port as a bug of the controller."""
    assert meaning_of(kind) is not rx.RayError, "it is in the table, or something above it is"


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (rx.ActorDiedError(), WorkerLost),
        (rx.ActorUnavailableError("gone", None), WorkerLost),
        (rx.NodeDiedError("gone"), WorkerLost),
        (rx.OwnerDiedError("00", None, "here"), WorkerLost),
        (rx.ObjectStoreFullError("full"), Transient),
        (rx.TaskUnschedulableError("nowhere"), PortFailed),
        (rx.TaskCancelledError(), InvariantError),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_some_of_them_by_name(error: rx.RayError, meaning: type[ConductorError]) -> None:
    assert type(translated("engine", error)) is meaning


def test_a_lost_object_is_the_stores_and_not_the_callers() -> None:
    """The group is generated again; no worker is suspected."""
    lost = translated("policy/0", rx.ObjectLostError("00", None, "here"))
    assert isinstance(lost, WorkerLost)
    assert lost.worker == "payload store"


def test_a_preempted_node_is_told_as_one() -> None:
    lost = translated("rollout/0", rx.RayActorError(error_msg="drained", preempted=True))
    assert isinstance(lost, WorkerLost)
    assert lost.preempted


def test_a_worker_that_memory_ran_out_for_says_so() -> None:
    """Ray ends that message with a page of advice, whose last line says nothing of why."""
    why = "3 worker(s) were killed due to the node running low on memory. 22.5GB used / 23.5GB limit"
    lost = translated("rollout/0", rx.OutOfMemoryError(f"{why}\n\tRefer to the documentation\n"))
    assert isinstance(lost, WorkerLost)
    assert lost.cause == why


def test_a_worker_that_was_killed_is_told_of_without_advice() -> None:
    """It is a line of the log and of ``conductor inspect``; Ray follows it with six lines of what might have been."""
    why = "Worker unexpectedly exits with a connection error code 2. End of file."
    lost = translated(
        "policy/0", rx.RayActorError(error_msg=f"{why} Some common causes include: (1) the process was killed")
    )
    assert isinstance(lost, WorkerLost)
    assert lost.cause == why


def test_the_table_names_classes_of_ray_alone() -> None:
    assert all(kind.__module__ == rx.__name__ for kind in MEANING)

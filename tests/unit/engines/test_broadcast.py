"""Weights that are broadcast: what arrives, and what becomes of a broadcast that breaks."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.engines import _broadcast
from backends.engines._broadcast import BroadcastFailed, Invitation, Meeting, Piece, buckets_of, receiving
from tests.support.tensors import mixed_tensors

CPU = torch.device("cpu")
TENSORS = mixed_tensors(40_000)

pytestmark = pytest.mark.real_time

pieces = st.lists(
    st.builds(
        Piece,
        name=st.text(max_size=3),
        kind=st.sampled_from(["float32", "bfloat16", "int8"]),
        shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    )
)


@given(pieces, st.integers(1, 2000))
def test_buckets_hold_every_piece_once_in_order_and_no_more_than_they_may(found: list[Piece], size: int) -> None:
    """Both sides split what travels by themselves: the same list gives the same buckets."""
    buckets = list(buckets_of(found, size))
    assert [piece for bucket in buckets for piece in bucket] == found
    for bucket in buckets:
        assert len(bucket) == 1 or sum(8 * piece.words for piece in bucket) <= size


def meet(receivers: int = 1, *, timeout_s: float = 10.0) -> Meeting:
    return Meeting("127.0.0.1", receivers, TENSORS, transport="gloo", timeout_s=timeout_s, bucket_bytes=4096)


def take(invitation: Invitation) -> dict[str, torch.Tensor]:
    with receiving(invitation) as weights:
        return dict(weights)


@contextmanager
def receivers(meeting: Meeting, *calls: Callable[[Invitation], dict[str, torch.Tensor]]) -> Iterator[list[Future]]:
    """Let receivers come in threads of their own, and wait until all are there."""
    with ThreadPoolExecutor(len(calls)) as threads:
        found = [threads.submit(call, meeting.invitation) for call in calls]
        while not meeting.complete:
            threading.Event().wait(0.005)
        yield found


def test_all_receivers_have_what_was_sent() -> None:
    meeting = meet(2)
    with receivers(meeting, take, take) as found:
        meeting.send(CPU, lambda: False)
    for future in found:
        for name, tensor in TENSORS.items():
            assert future.result()[name].dtype == tensor.dtype
            assert torch.equal(future.result()[name], tensor)


def test_words_that_change_places_on_the_way_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain sum would not see it."""
    packed = _broadcast._packed

    def swapped(*args: object) -> torch.Tensor:
        words = packed(*args)  # pyright: ignore[reportArgumentType]
        words[:2] = words[:2].flip(0)
        return words

    meeting = meet()
    monkeypatch.setattr(_broadcast, "_packed", swapped)
    with receivers(meeting, take) as found, pytest.raises(BroadcastFailed, match="gone"):
        meeting.send(CPU, lambda: False)
    with pytest.raises(BroadcastFailed, match="matrix and 4 tensors after it were damaged"):
        found[0].result()


def test_a_receiver_that_leaves_in_the_middle_ends_the_broadcast_at_once() -> None:
    """A server that dies: its connections close. The timeout of a minute is not waited for, the test's would hit."""

    def leave(invitation: Invitation) -> dict[str, torch.Tensor]:
        with receiving(invitation) as weights:
            return dict([next(weights)])

    meeting = meet(timeout_s=60)
    with receivers(meeting, leave), pytest.raises(BroadcastFailed, match="gone"):
        meeting.send(CPU, lambda: False)


def test_a_sender_that_gives_up_ends_it_for_the_receivers_at_once() -> None:
    meeting = meet(timeout_s=60)
    sent = iter([False, True])
    with receivers(meeting, take) as found, pytest.raises(BroadcastFailed, match="given up"):
        meeting.send(CPU, lambda: next(sent))
    with pytest.raises(BroadcastFailed, match="gone"):
        found[0].result()


def test_who_was_not_invited_gets_nothing() -> None:
    """A request that is repeated over a new connection must not take the place of a worker."""
    meeting = meet()
    with receivers(meeting, take):
        with pytest.raises(BroadcastFailed, match="comes after"):
            take(meeting.invitation)
        meeting.send(CPU, lambda: False)

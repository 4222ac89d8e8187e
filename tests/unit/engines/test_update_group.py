"""Weights that are broadcast to an SGLang server: what arrives, and what becomes of a broadcast that breaks."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor
from torch.distributed import distributed_c10d

from backends.engines._broadcast import BroadcastFailed, Terms, pieces_of
from backends.engines._update_group import UpdateGroup, join_group, received
from tests.support.tensors import mixed_tensors

CPU = torch.device("cpu")
HOST = "127.0.0.1"
TENSORS = mixed_tensors(4_000_000)  # more than sockets hold: its sender waits until it is taken
dist: Any = torch.distributed
c10d: Any = distributed_c10d

pytestmark = pytest.mark.real_time

Take = Callable[[UpdateGroup, int], Mapping[str, Tensor]]


def open_group(name: str, receivers: int = 1, *, timeout_s: float = 10.0) -> UpdateGroup:
    return UpdateGroup(HOST, name, Terms(world=receivers + 1, transport="gloo", timeout_s=timeout_s))


def take(group: UpdateGroup, rank: int) -> Mapping[str, Tensor]:
    joined = join_group(HOST, group.port, rank, group.name, group.terms)
    return received(joined, pieces_of(TENSORS), CPU)


def take_as_torch_does(group: UpdateGroup, rank: int) -> Mapping[str, Tensor]:
    """Make the group as SGLang 0.5.23 does, from torch's own parts, and receive with torch's own call."""
    timeout = timedelta(seconds=10)
    store, _, world = next(dist.rendezvous(f"tcp://{HOST}:{group.port}", rank, group.terms["world"], timeout=timeout))
    store = dist.PrefixStore(group.name, store)
    joined, _ = c10d._new_process_group_helper(
        world, rank, [], dist.Backend("gloo"), store, group_name=group.name, timeout=timeout
    )
    c10d._world.pg_group_ranks[joined] = {number: number for number in range(world)}
    try:
        tensors = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in TENSORS.items()}
        waits = [dist.broadcast(tensor, src=0, group=joined, async_op=True) for tensor in tensors.values()]
        for wait in waits:
            wait.wait()
        return tensors
    finally:
        dist.destroy_process_group(joined)


@contextmanager
def receivers(group: UpdateGroup, *calls: Take) -> Iterator[list[Future[Mapping[str, Tensor]]]]:
    """Let receivers come in threads of their own, and join them."""
    with ThreadPoolExecutor(len(calls)) as threads:
        found = [threads.submit(call, group, rank) for rank, call in enumerate(calls, start=1)]
        while not group.awaited:
            threading.Event().wait(0.005)
        try:
            group.meet()
            yield found
        finally:
            group.leave()


@pytest.mark.parametrize("calls", [(take_as_torch_does,), (take, take)])
def test_receivers_have_what_was_sent(calls: tuple[Take, ...]) -> None:
    """A server makes its side of the group by torch's functions: both must meet at the same place in the store."""
    group = open_group(f"for-{len(calls)}", len(calls))
    with receivers(group, *calls) as found:
        group.send(list(TENSORS.values()), CPU)
        tensors = [future.result() for future in found]
    for one in tensors:
        for name, tensor in TENSORS.items():
            assert one[name].dtype == tensor.dtype
            assert torch.equal(one[name], tensor)


def test_a_sender_that_gives_up_ends_it_for_the_receiver_at_once() -> None:
    """Else a server's scheduler stands still for as long as its group waits: half an hour in SGLang."""
    group = open_group("given-up", timeout_s=60)
    with receivers(group, take) as found:
        group.send(list(TENSORS.values())[:2], CPU)
        group.leave()
        with pytest.raises(BroadcastFailed, match="gone"):
            found[0].result(30)


def test_a_sender_that_leaves_before_the_meeting_ends_it_for_the_receiver_at_once() -> None:
    group = open_group("left", timeout_s=60)
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(take, group, 1)
        while not group.awaited:
            threading.Event().wait(0.005)
        group.leave()
        with pytest.raises(BroadcastFailed, match="does not meet"):
            found.result(30)


def test_a_receiver_that_leaves_ends_the_broadcast_at_once() -> None:
    """A server that dies: its connections close."""

    def leave(group: UpdateGroup, rank: int) -> Mapping[str, Tensor]:
        joined = join_group(HOST, group.port, rank, group.name, group.terms)
        return received(joined, pieces_of(TENSORS)[:1], CPU)

    group = open_group("died", timeout_s=60)
    with receivers(group, leave), pytest.raises(BroadcastFailed, match="gone"):
        group.send(list(TENSORS.values()), CPU)

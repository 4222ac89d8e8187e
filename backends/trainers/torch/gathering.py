"""A module that is split over ranks, whose layers become whole while they compute. torch's FSDP2 does it.

FSDP2 binds a module to the group of processes that it was split for. Ranks meet anew after every call that failed or was
cancelled, so here it gets a group of nobody for its bookkeeping, and everything that it sends goes by way of
``Ranks``: to those of the generation that is, with their failures told as everywhere.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import Module, ModuleList

from backends.trainers.torch.ranks import Ranks


def shard_module(module: Module, rank: int, world: int, ranks: Ranks) -> None:
    """Keep one rank's part of a module, in place; asks nobody, and needs no group of processes to be there.

    Args:
        module: Its blocks, the entries of its outermost lists of modules, become whole one at a time; the rest is whole
            from the beginning of a forward pass to its end, and once more in the backward pass.
        rank: Whose part.
        world: Of how many.
        ranks: By whom the others are reached later.
    """
    with _group_of_nobody(rank, world, next(module.parameters()).device) as mesh:
        for block in (*_blocks(module), module):
            split: Any = fully_shard(block, mesh=mesh, reshard_after_forward=True)
            split.set_gradient_divide_factor(1.0)  # losses are shares of the whole batch's: a sum, not a mean
            split.set_force_sum_reduction_for_comms(enable=True)  # gloo knows no sum that is scaled on the way
            split.set_reduce_scatter_unused_params(True, recurse=False)  # experts that one rank's tokens passed by
            split.set_custom_all_gather(_AllGather(ranks))
            split.set_custom_reduce_scatter(_ReduceScatter(ranks))


def _blocks(module: Module) -> Iterator[Module]:
    for child in module.children():
        if isinstance(child, ModuleList):
            yield from child
        else:
            yield from _blocks(child)


@contextmanager
def _group_of_nobody(rank: int, world: int, device: torch.device) -> Generator[DeviceMesh]:
    dist.init_process_group("fake", rank=rank, world_size=world, store=dist.HashStore())
    try:
        yield DeviceMesh(device.type, list(range(world)))
    finally:
        dist.destroy_process_group()


class _Room:
    """Allocates what is sent and received."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Room):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        assert not async_op
        self._ranks.gather_tensor(output_tensor, input_tensor)


class _ReduceScatter(_Room):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        assert not async_op
        self._ranks.add_up_parts(output_tensor, input_tensor)

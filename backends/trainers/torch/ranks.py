"""Several processes train one policy: each computes a share of a batch, and what it computes is added up.

The processes of one *generation* meet at a store that one of them offers, over gloo on CPUs and nccl on GPUs. Whoever
fails or is cancelled in the middle of a step leaves the generation, which closes its connections: the others, who
wait for it in a sum, fail at once instead of after a time-out, and leave too. Then a new generation meets.
"""

import socket
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from protocols.errors import InvariantError, PeersLost
from protocols.training import JoinRequest

_BUCKET_BYTES = 32 << 20
"""Gradients are added up in pieces of about this size, which bounds the memory that it takes."""


class Ranks:
    """One process's place among those that train; alone until it joins. The thread that computes uses it.

    Args:
        timeout_s: How long a sum waits for the others.

    Attributes:
        rank, world: Its number among how many.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self._store: TCPStore | None = None
        self._offered = ""
        self._joined = False
        self.rank, self.world = 0, 1

    def offer(self, host: str) -> str:
        """Open a store to meet at, on a port that the system chooses; returns ``host:port``.

        Args:
            host: The name by which the others reach this machine; empty: the address that it has itself.
        """
        host = host or own_address()
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self._timeout)
        self._offered = f"{host}:{self._store.port}"
        return self._offered

    def join(self, request: JoinRequest, device: torch.device) -> None:
        """Leave the generation before, meet the others of the new one.

        Raises:
            PeersLost: Not all of them came in time.
        """
        self.leave()
        self.rank, self.world = request.rank, request.world
        with self._others():
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=PrefixStore(str(request.generation), self.meeting_place(request.address)),
                rank=request.rank,
                world_size=request.world,
                timeout=self._timeout,
            )
        self._joined = True

    def leave(self) -> None:
        """Close the connections to the others, if there are any."""
        if self._joined:
            self._joined = False
            dist.destroy_process_group()

    def owns(self, index: int) -> bool:
        """Return whether group ``index`` of a batch is this rank's to train."""
        return index % self.world == self.rank

    def add_up(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the sums over all ranks, by name; a rank may lack names."""
        sums: dict[str, float] = {}
        for one in self._all(dict(values)):
            for name, value in one.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def largest(self, value: float) -> float:
        """Return the largest value of all ranks."""
        return max(self._all(value))

    def add_up_tensor(self, tensor: Tensor) -> Tensor:
        """Replace a tensor, of one shape on all ranks, with its sum; returns it."""
        if self._among_others():
            with self._others():
                dist.all_reduce(tensor)
        return tensor

    def gather_tensor(self, whole: Tensor, part: Tensor) -> None:
        """Fill a tensor with the parts of all ranks, of one shape each, one after the other."""
        self._among_others()
        with self._others():
            dist.all_gather_single(whole, part)

    def add_up_parts(self, part: Tensor, whole: Tensor) -> None:
        """Fill this rank's part of the sum of a tensor, of one shape on all ranks."""
        self._among_others()
        with self._others():
            dist.reduce_scatter_single(part, whole)

    def add_up_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace the gradients of parameters, the same on all ranks, with their sums."""
        if not self._among_others():
            return
        for bucket in _buckets(parameter.grad for parameter in parameters if parameter.grad is not None):
            flat = self.add_up_tensor(torch.cat([gradient.flatten() for gradient in bucket]))
            for gradient, piece in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                gradient.copy_(piece.view_as(gradient))

    def share(self, value: Any, source: int) -> Any:
        """Return what ``source`` gives."""
        box = [value]
        with self._others():
            dist.broadcast_object_list(box, source)
        return box[0]

    def share_tensor(self, tensor: Tensor, source: int) -> None:
        """Fill a tensor, of one shape on all ranks, with what ``source`` has in it."""
        with self._others():
            dist.broadcast(tensor, source)

    def meeting_place(self, address: str) -> TCPStore:
        """Return the store at an address that was offered, here or elsewhere."""
        if self._store is not None and address == self._offered:
            return self._store
        host, _, port = address.rpartition(":")
        return TCPStore(host, int(port), is_master=False, timeout=self._timeout)

    @contextmanager
    def _others(self) -> Generator[None]:
        try:
            yield
        except RuntimeError as exc:  # all that torch says when a peer is gone, or does not come
            raise PeersLost(f"rank {self.rank} of {self.world} lost the others: {exc}") from exc

    def _all(self, value: Any) -> list[Any]:
        if not self._among_others():
            return [value]
        gathered: list[Any] = [None] * self.world
        with self._others():
            dist.all_gather_object(gathered, value)
        return gathered

    def _among_others(self) -> bool:
        if self.world > 1 and not self._joined:
            raise InvariantError(f"rank {self.rank} has left the others, and nobody had it join again")
        return self._joined


def own_address() -> str:
    """Return the address by which this machine is reached from others; that of itself where it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # nothing is sent: the system only chooses by which way it would go
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _buckets(gradients: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        bucket.append(gradient)
        size += gradient.nbytes
        if size >= _BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket

"""A group as SGLang makes one for its weights, and one broadcast in it for each tensor.

Both sides name a group: its name is where in the store its members find each other. Nothing travels but the tensors, in
the order in which a request names them; whether they arrived, its answer tells.

Source: SGLang 0.5.23, ``srt/model_executor/model_runner_components/weight_updater.py``, ``init_custom_process_group``
of ``srt/utils/common.py``; torch 2.13, ``distributed/distributed_c10d.py``, ``distributed/rendezvous.py``.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
    rendezvous,  # pyright: ignore[reportPrivateImportUsage]
)

from backends.engines._broadcast import BroadcastFailed, Group, Piece, Terms, Transport, address_towards, broken

_DEVICE = {"gloo": "cpu", "nccl": "cuda"}
"""The first kind of device that torch lists for a transport: under its name the members' addresses lie."""


class UpdateGroup:
    """The sender's side of one group.

    Args:
        host: The name by which the receivers reach the sender.
        name: Of the group; the receivers' process has no other of this name.
        terms: How many meet, what carries tensors, and how long the meeting, and then each tensor, may take.

    Attributes:
        port: Where they come to, at ``host``.
    """

    def __init__(self, host: str, name: str, terms: Terms) -> None:
        timeout = timedelta(seconds=terms["timeout_s"])
        self._store: TCPStore | None = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        self._group: Group | None = None
        self.host = host
        self.name = name
        self.terms = terms
        self.port = self._store.port

    @property
    def awaited(self) -> bool:
        """Whether a receiver waits for the sender; then all do: they are one server's, which asks them together."""
        return self._store is not None and self._store.num_keys() > 0

    def meet(self) -> None:
        """Join the receivers, who are there. Blocks.

        Raises:
            BroadcastFailed: They do not come.
        """
        assert self._store is not None
        self._group = Group(_named(self._store, self.name, self.terms["transport"]), 0, self.host, self.terms)

    def send(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        """Send tensors from a device. Blocks.

        Raises:
            BroadcastFailed: A receiver is gone, or too slow.
        """
        assert self._group is not None
        try:
            for tensor in tensors:
                self._group.broadcast(tensor.detach().to(device).contiguous())
        except BroadcastFailed:
            self.leave()  # who still waits for the rest need not do so until it is told
            raise
        if device.type == "cuda":  # only put in line until then, and to leave the group would drop it
            torch.cuda.synchronize(device)

    def leave(self) -> None:
        """Leave the group, which ends what the receivers wait for."""
        if self._group is not None:
            self._group.leave()
        self._group = self._store = None


def join_group(host: str, port: int, rank: int, name: str, terms: Terms) -> Group:
    """Join a sender's group as SGLang does; blocks until it is there.

    Raises:
        BroadcastFailed: It does not come.
    """
    timeout = timedelta(seconds=terms["timeout_s"])
    with broken("nobody is there to send weights"):
        store, _, _ = next(rendezvous(f"tcp://{host}:{port}", rank, terms["world"], timeout=timeout))
        store.set_timeout(timeout)
    return Group(_named(store, name, terms["transport"]), rank, address_towards(host, port), terms)


def received(group: Group, pieces: Sequence[Piece], device: torch.device) -> Mapping[str, Tensor]:
    """Receive tensors in their order.

    Raises:
        BroadcastFailed: The sender is gone, or too slow.
    """
    tensors = {piece.name: torch.empty(piece.shape, dtype=piece.dtype, device=device) for piece in pieces}
    for tensor in tensors.values():
        group.broadcast(tensor)
    return tensors


def _named(store: Store, name: str, transport: Transport) -> Store:
    """Return the place of a group in a store: SGLang goes one level down, torch two more."""
    return PrefixStore(f"{_DEVICE[transport]}/", PrefixStore(f"{name}/", PrefixStore(name, store)))

"""Weights from one process to others by broadcast: who meets where, and what travels.

A server's worker imports this in the server's own environment: nothing but torch and the standard library is needed.
One group is made for each publish to each server, and left when that is over. So a server that comes, goes or dies in
the middle is nobody else's matter, and no message of an older publish can be taken for one of this.
"""

import math
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypedDict

import torch
import torch.distributed
from torch import Tensor
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

dist: Any = torch.distributed  # groups beside the process's own are not among its typed names

Transport = Literal["gloo", "nccl"]

BUCKET_BYTES = 32 << 20
"""Tensors travel packed to about this size; a larger one travels alone."""

_WORD = 8
_SUMS = 2
_ARRIVED = "arrived"


class BroadcastFailed(Exception):
    """Weights did not arrive, or not as they were sent."""


class Piece(NamedTuple):
    """One tensor: its name, the name of its type (``bfloat16``), its shape."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Its type."""
        return getattr(torch, self.kind)

    @property
    def bytes(self) -> int:
        """How many there are of it."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def words(self) -> int:
        """How many words of 8 bytes it takes."""
        return -(-self.bytes // _WORD)


class Terms(TypedDict):
    """What all members of a group agree on: ``world`` counts the sender; ``timeout_s`` bounds each thing they do."""

    world: int
    transport: Transport
    timeout_s: float


class Invitation(Terms):
    """All that a receiver has to know, as JSON.

    ``address`` is ``host:port`` of the store where all meet; ``tensors`` are pieces, in the order in which they travel.
    """

    address: str
    tensors: Sequence[Sequence[Any]]
    bucket_bytes: int


def pieces_of(tensors: Mapping[str, Tensor]) -> list[Piece]:
    """Describe tensors."""
    return [
        Piece(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()
    ]


def buckets_of(pieces: Sequence[Piece], bucket_bytes: int) -> Iterator[list[Piece]]:
    """Split pieces, in their order, into buckets of at most so many bytes, or of one piece."""
    bucket: list[Piece] = []
    words = 0
    for piece in pieces:
        if bucket and (words + piece.words) * _WORD > bucket_bytes:
            yield bucket
            bucket, words = [], 0
        bucket.append(piece)
        words += piece.words
    if bucket:
        yield bucket


@contextmanager
def broken(what: str) -> Generator[None]:
    """Tell of torch's errors as ``BroadcastFailed``, behind what did not happen."""
    try:
        yield
    except RuntimeError as exc:  # all that torch says when a peer is gone, or does not come
        raise BroadcastFailed(f"{what}: {exc}") from exc


class Group:
    """A group beside whatever groups the process has. Left at the end, which cuts the connections of the others.

    Args:
        store: Where they tell each other their addresses.
        rank: 0: the sender.
        address: Of this machine, as the others reach it.
        terms: The same for all.

    Raises:
        BroadcastFailed: The others do not come.
    """

    def __init__(self, store: Store, rank: int, address: str, terms: Terms) -> None:
        gloo = terms["transport"] == "gloo"
        options = dist.ProcessGroupGloo._Options() if gloo else dist.ProcessGroupNCCL.Options()  # noqa: SLF001
        options._timeout = timedelta(seconds=terms["timeout_s"])  # noqa: SLF001 - torch has no other name for it
        if gloo:
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]  # noqa: SLF001
        join = dist.ProcessGroupGloo if gloo else dist.ProcessGroupNCCL
        with broken(f"rank {rank} of {terms['world']} does not meet the others"):
            self._group: Any = join(store, rank, terms["world"], options)

    def broadcast(self, tensor: Tensor) -> None:
        """Give all others what the sender has in the tensor.

        Raises:
            BroadcastFailed: They are gone, or too slow.
        """
        with broken("the others are gone, or too slow"):
            self._group.broadcast(tensor, 0).wait()

    def end(self) -> None:
        """Wait until all have come to the end.

        Raises:
            BroadcastFailed: They are gone, or too slow.
        """
        with broken("the others are gone, or too slow"):
            self._group.barrier().wait()

    def leave(self) -> None:
        """Leave it; an error that is told of later must not keep the connections."""
        self._group = None


@contextmanager
def _group(store: TCPStore, rank: int, address: str, terms: Terms) -> Generator[Group]:
    group = Group(store, rank, address, terms)
    try:
        yield group
    finally:
        group.leave()


class Meeting:
    """One publish: where its receivers come to, and what they are sent there.

    Args:
        host: The name by which they reach the sender.
        receivers: How many there will be.
        tensors: By name.
        transport: What carries them.
        timeout_s: How long the meeting, and then each bucket, may take.
        bucket_bytes: As large is a bucket.

    Attributes:
        invitation: What a receiver is told.
    """

    def __init__(
        self,
        host: str,
        receivers: int,
        tensors: Mapping[str, Tensor],
        *,
        transport: Transport,
        timeout_s: float,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._host = host
        self._tensors = tensors
        self._pieces = pieces_of(tensors)
        timeout = timedelta(seconds=timeout_s)
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        self.invitation = Invitation(
            address=f"{host}:{self._store.port}",
            world=receivers + 1,
            transport=transport,
            tensors=self._pieces,
            bucket_bytes=bucket_bytes,
            timeout_s=timeout_s,
        )

    @property
    def complete(self) -> bool:
        """Whether all receivers are there."""
        return self._store.add(_ARRIVED, 0) >= self.invitation["world"] - 1

    def send(self, device: torch.device, ended: Callable[[], bool]) -> None:
        """Send the tensors to the receivers, who are there. Blocks.

        Args:
            device: From which they are sent.
            ended: Whether nobody wants them any more; asked before each bucket.

        Raises:
            BroadcastFailed: A receiver is gone, or too slow.
        """
        with _group(self._store, 0, self._host, self.invitation) as group:
            for bucket in buckets_of(self._pieces, self.invitation["bucket_bytes"]):
                if ended():
                    raise BroadcastFailed("it was given up")
                group.broadcast(_packed(bucket, self._tensors, device))
            group.end()


@contextmanager
def receiving(invitation: Invitation) -> Generator[Iterator[tuple[str, Tensor]]]:
    """Meet a sender; gives the tensors by name, as they come, each in memory of its own bucket.

    Raises:
        BroadcastFailed: The sender is gone, or too slow, or what came is not what was sent.
    """
    pieces = [Piece(name, kind, tuple(shape)) for name, kind, shape in invitation["tensors"]]
    host, _, port = invitation["address"].rpartition(":")
    with broken("nobody is there to send weights"):
        timeout = timedelta(seconds=invitation["timeout_s"])
        store = TCPStore(host, int(port), is_master=False, timeout=timeout)
        rank = store.add(_ARRIVED, 1)
    if rank >= invitation["world"]:
        raise BroadcastFailed(f"{invitation['world'] - 1} workers were invited, and this one comes after them")
    nccl = invitation["transport"] == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    with _group(store, rank, address_towards(host, int(port)), invitation) as group:
        yield _received(group, pieces, invitation["bucket_bytes"], device)


def _received(
    group: Group, pieces: Sequence[Piece], bucket_bytes: int, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    for bucket in buckets_of(pieces, bucket_bytes):
        words = torch.empty(sum(piece.words for piece in bucket) + _SUMS, dtype=torch.int64, device=device)
        group.broadcast(words)
        yield from _unpacked(bucket, words)
    group.end()


def address_towards(host: str, port: int) -> str:
    """Return the address of this machine under which ``host`` reaches it."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family[0], socket.SOCK_DGRAM) as probe:
        probe.connect(family[4])  # sends nothing
        return probe.getsockname()[0]


def _packed(bucket: Sequence[Piece], tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """Return the bytes of tensors one after the other, and their sums behind them."""
    words = torch.empty(sum(piece.words for piece in bucket) + _SUMS, dtype=torch.int64, device=device)
    at = 0
    for piece in bucket:
        raw = tensors[piece.name].detach().contiguous().reshape(-1).view(torch.uint8)
        words[at : at + piece.words].view(torch.uint8)[: piece.bytes].copy_(raw)
        at += piece.words
    words[at:] = _sums(words[:at])
    return words


def _unpacked(bucket: Sequence[Piece], words: Tensor) -> Iterator[tuple[str, Tensor]]:
    at = sum(piece.words for piece in bucket)
    if not torch.equal(words[at:], _sums(words[:at])):
        raise BroadcastFailed(f"{bucket[0].name} and {len(bucket) - 1} tensors after it were damaged on their way")
    at = 0
    for piece in bucket:
        raw = words[at : at + piece.words].view(torch.uint8)[: piece.bytes]
        yield piece.name, raw.view(piece.dtype).reshape(piece.shape)
        at += piece.words


def _sums(words: Tensor) -> Tensor:
    """Return the sum of words, and that of each times its place, modulo 2**64: words that are lost or swapped show."""
    places = torch.arange(1, len(words) + 1, dtype=torch.int64, device=words.device)
    return torch.stack([words.sum(), (words * places).sum()])

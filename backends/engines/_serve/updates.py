"""Updates of weights by broadcast, as an SGLang server takes them: groups by name, tensors within a session."""

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus

import anyio.to_thread
import torch
from anyio.lowlevel import checkpoint

from backends.engines._broadcast import BroadcastFailed, Group, Piece, Terms, Transport
from backends.engines._serve.served import ServedEngine
from backends.engines._serve.web import Refused
from backends.engines._update_group import join_group, received

WAIT_S = 60.0
"""How long a sender may take to come, and then for each tensor; an SGLang server waits for torch's half an hour."""

_CPU = torch.device("cpu")


class Updates:
    """The groups that a server is in, and its session; one worker, on a CPU.

    All raise ``Refused`` where an SGLang server answers with 400.

    Args:
        served: Whose weights are updated.
    """

    def __init__(self, served: ServedEngine) -> None:
        self._served = served
        self._groups: dict[str, Group] = {}
        self._held: bool | None = None

    async def begin(self) -> None:
        """Open the session."""
        await checkpoint()
        if self._held is not None:
            raise _refused("a weight-update session is already open")
        self._held = self._served.next_is_held()

    async def end(self) -> None:
        """Close it."""
        await checkpoint()
        self._session()
        self._held = None

    async def join(self, address: tuple[str, int], rank: int, world: int, name: str, transport: str) -> None:
        """Join a sender's group."""
        if transport != "gloo":
            raise _refused(f"there is no {transport} here, but gloo")
        if name in self._groups:
            raise _refused(f"there is a group {name} already")
        carrier: Transport = "gloo"
        terms = Terms(world=world, transport=carrier, timeout_s=WAIT_S)
        join = partial(join_group, *address, rank, name, terms)
        try:
            self._groups[name] = await anyio.to_thread.run_sync(join, abandon_on_cancel=True)
        except BroadcastFailed as exc:
            raise _refused(f"Failed to initialize custom process group: {exc}") from exc

    async def receive(self, name: str, pieces: Sequence[Piece]) -> None:
        """Receive tensors in a group, and serve them from the next token on."""
        held = self._session()
        receive = partial(received, self._group(name), pieces, _CPU)
        try:
            tensors = await anyio.to_thread.run_sync(receive, abandon_on_cancel=True)
        except BroadcastFailed as exc:
            raise _refused(f"Failed to receive weights: {exc}") from exc
        if held:
            await self._served.update(tensors)

    async def leave(self, name: str) -> None:
        """Leave a group."""
        await checkpoint()
        self._group(name).leave()
        del self._groups[name]

    def _session(self) -> bool:
        if self._held is None:
            raise _refused("no weight-update session is open")
        return self._held

    def _group(self, name: str) -> Group:
        if name not in self._groups:
            raise _refused(f"there is no group {name}")
        return self._groups[name]


def _refused(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, why)

"""How weights get from this process to a server: as files in a folder, or by broadcast."""

import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import torch
from anyio.lowlevel import checkpoint

from backends.engines._broadcast import BroadcastFailed, Invitation, Meeting, Transport, address_towards
from backends.engines._http.files import WeightFiles
from protocols.aio import deadline, open_tasks, owned
from protocols.errors import Transient

MEET_S = 60.0
"""How long a server's workers may take to come to a broadcast, and then to take each bucket."""

ANSWER_S = 5.0
"""How long a server whose broadcast broke may take to say more: whether it is lost."""

_LOOK_EVERY_S = 0.01


class Folder:
    """Weights in files that the server reads.

    Attributes:
        path: Of their folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path


class Broadcast:
    """Weights that are sent to servers, each in a group of its own.

    Args:
        tensors: By the names that the model's own checkpoints use.
        transport: What carries them.
        device: From which they are sent.
    """

    def __init__(self, tensors: Mapping[str, Any], transport: Transport, device: torch.device) -> None:
        self._tensors = tensors
        self._transport: Transport = transport
        self._device = device

    async def send(self, url: str, workers: int, invite: Callable[[Invitation], Awaitable[object]]) -> None:
        """Send them to a server, while ``invite`` waits for its answer; what fails first ends the other.

        Args:
            url: The server's.
            workers: How many of its processes take weights.
            invite: Asks it to let them come; returns when they hold what was sent.

        Raises:
            Transient: They did not come, or left, or are too slow.
            ServerRefused, ConductorError: As ``invite`` does.
        """
        where = urlsplit(url)
        try:
            host = await anyio.to_thread.run_sync(address_towards, where.hostname or "", where.port or 80)
            meeting = Meeting(host, workers, self._tensors, transport=self._transport, timeout_s=MEET_S)
        except OSError as exc:
            raise Transient(f"there is no way to {url}: {exc}") from exc
        broken: list[Transient] = []
        asking = anyio.CancelScope()

        async def send() -> None:
            try:
                await self._send(meeting, url)
            except Transient as exc:
                broken.append(exc)
                asking.deadline = anyio.current_time() + ANSWER_S

        async with open_tasks() as tasks:
            tasks.start_soon(owned, "broadcast", send, name=f"broadcast to {url}")
            with asking:
                await invite(meeting.invitation)
        if broken:
            raise broken[0]

    async def _send(self, meeting: Meeting, url: str) -> None:
        with deadline(f"the meeting with {url}", MEET_S):
            while not meeting.complete:  # noqa: ASYNC110 - they come to a store, which rings no bell
                await anyio.sleep(_LOOK_EVERY_S)
        ended = threading.Event()
        try:
            # left behind, the thread ends with its bucket: at once where the server is gone
            await anyio.to_thread.run_sync(meeting.send, self._device, ended.is_set, abandon_on_cancel=True)
        except BroadcastFailed as exc:
            raise Transient(f"the broadcast to {url} broke: {exc}") from exc
        finally:
            ended.set()


Cargo = Folder | Broadcast


class Shipping(Protocol):
    """Makes weights ready for a server, one set at a time."""

    async def pack(self, label: str, weights: Mapping[str, Any]) -> Cargo:
        """Make weights ready.

        Raises:
            Transient: It cannot be done now.
        """
        ...

    async def held(self, label: str) -> None:
        """Take note that the server holds some; what was made ready for others may go."""
        ...


class ByFolder:
    """Writes weights where the server reads them."""

    def __init__(self, files: WeightFiles) -> None:
        self._files = files

    async def pack(self, label: str, weights: Mapping[str, Any]) -> Cargo:
        """Write them."""
        try:
            return Folder(await anyio.to_thread.run_sync(self._files.write, label, weights))
        except OSError as exc:
            raise Transient(f"weights cannot be written: {exc}") from exc

    async def held(self, label: str) -> None:
        """Remove all others."""
        await anyio.to_thread.run_sync(self._files.keep, label)


class ByBroadcast:
    """Sends weights from this process.

    Args:
        transport: What carries them.
        device: From which they are sent.
    """

    def __init__(self, transport: Transport, device: torch.device) -> None:
        self._transport: Transport = transport
        self._device = device

    async def pack(self, label: str, weights: Mapping[str, Any]) -> Cargo:  # noqa: ARG002 - they travel under no name
        """Keep them for who is to be sent them."""
        await checkpoint()
        return Broadcast(weights, self._transport, self._device)

    async def held(self, label: str) -> None:  # noqa: ARG002 - nothing is kept
        """Do nothing."""
        await checkpoint()


_: tuple[type[Shipping], type[Shipping]] = (ByFolder, ByBroadcast)

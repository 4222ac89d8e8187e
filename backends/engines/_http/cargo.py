"""How weights get from this process to a server: as files in a folder, or by broadcast."""

import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
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

    Attributes:
        tensors: By the names that the model's own checkpoints use.
        transport: What carries them.
        device: From which they are sent.
    """

    def __init__(self, tensors: Mapping[str, Any], transport: Transport, device: torch.device) -> None:
        self.tensors = tensors
        self.transport: Transport = transport
        self.device = device

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
        host = await address_before(url)
        with broadcasting_to(url):
            meeting = Meeting(host, workers, self.tensors, transport=self.transport, timeout_s=MEET_S)
        ended = threading.Event()

        async def send() -> None:
            await until_met(url, lambda: meeting.complete)
            await in_thread(url, meeting.send, self.device, ended.is_set)

        try:
            await beside(url, send, lambda: invite(meeting.invitation))
        finally:
            ended.set()


async def beside(url: str, send: Callable[[], Awaitable[None]], ask: Callable[[], Awaitable[object]]) -> None:
    """Send to a server that is asked to receive; what fails first ends the other.

    Raises:
        Transient: It was not sent; what the server says to that is waited for ``ANSWER_S``, and comes first.
        ServerRefused, ConductorError: As ``ask`` does.
    """
    broken: list[Transient] = []
    asking = anyio.CancelScope()

    async def sending() -> None:
        try:
            await send()
        except Transient as exc:
            broken.append(exc)
            asking.deadline = anyio.current_time() + ANSWER_S

    async with open_tasks() as tasks:
        tasks.start_soon(owned, "broadcast", sending, name=f"broadcast to {url}")
        with asking:
            await ask()
    if broken:
        raise broken[0]


async def address_before(url: str) -> str:
    """Return the address under which a server reaches this machine.

    Raises:
        Transient: There is none.
    """
    where = urlsplit(url)
    try:
        return await anyio.to_thread.run_sync(address_towards, where.hostname or "", where.port or 80)
    except OSError as exc:
        raise Transient(f"there is no way to {url}: {exc}") from exc


async def until_met(url: str, met: Callable[[], bool]) -> None:
    """Wait until a server's workers are there.

    Raises:
        DeadlineExceeded: They do not come.
    """
    with deadline(f"the meeting with {url}", MEET_S):
        while not met():  # noqa: ASYNC110 - they come to a store, which rings no bell
            await anyio.sleep(_LOOK_EVERY_S)


async def in_thread(url: str, call: Callable[..., None], *args: Any) -> None:
    """Do what blocks until a server's workers have done their part.

    Cancelling: leaves the thread behind, which ends with its part: at once where the server is gone.

    Raises:
        Transient: They did not.
    """
    with broadcasting_to(url):
        await anyio.to_thread.run_sync(call, *args, abandon_on_cancel=True)


@contextmanager
def broadcasting_to(url: str) -> Generator[None]:
    """Tell of all that a broadcast breaks by, torch's own errors among it, as ``Transient``."""
    try:
        yield
    except (BroadcastFailed, RuntimeError) as exc:  # no port, no memory on the device
        raise Transient(f"the broadcast to {url} broke: {exc}") from exc


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

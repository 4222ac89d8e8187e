"""Requests to one server, and what it means when they fail."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, TypeVar

import httpx2
import msgspec
import structlog

from protocols.errors import Transient, WorkerLost

log = structlog.get_logger(__name__)
T = TypeVar("T")

CONNECT_S = 10.0
"""How long a server may take to accept a connection."""

IDLE_S = 2.0
"""How long an unused connection is kept: servers close theirs after 5 s, and a request must not meet that."""

KEPT = 1024
"""Most unused connections."""


class ServerRefused(Exception):
    """The server answered with an error.

    Args:
        status: Of the answer.
        message: What it said.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.message = message


@contextmanager
def refusals_as_transient(what: str) -> Generator[None]:
    """Tell of a refusal as ``Transient``, behind what did not happen."""
    try:
        yield
    except ServerRefused as exc:
        raise Transient(f"{what}: {exc}") from exc


class Connection:
    """Carries requests to one server; any number at once.

    A connection may break after the server did what was asked. What is asked a second time must therefore be the same
    as having asked once; a request is sent again once, and only after ``before_again``, which makes that so.

    Args:
        client: Has the server's base URL, and one pool of connections for all that is asked.
        name: The server's, in errors.
    """

    def __init__(self, client: httpx2.AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def get(self, path: str, reply: type[T]) -> T:
        """Ask for what changes nothing."""
        return self._decoded(await self._send("GET", path), reply)

    async def get_text(self, path: str) -> str:
        """Ask for what changes nothing and is no JSON."""
        return (await self._send("GET", path)).decode()

    async def post(
        self,
        path: str,
        body: Any,
        reply: type[T] = msgspec.Raw,
        *,
        before_again: Callable[[], Awaitable[None]] | None = None,
    ) -> T:
        """Ask for something that may be asked twice, once ``before_again`` is done.

        Raises:
            ServerRefused: The server said no.
            WorkerLost: It cannot be reached, or broke the connection twice.
            Transient: Its answer cannot be understood.
        """
        return self._decoded(await self._send("POST", path, msgspec.json.encode(body), before_again), reply)

    async def tell(self, path: str, body: Any) -> None:
        """Ask for something as ``post`` does; what is answered need be no JSON, and only says that it was done."""
        await self._send("POST", path, msgspec.json.encode(body))

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        before_again: Callable[[], Awaitable[None]] | None = None,
    ) -> bytes:
        try:
            return await self._once(method, path, body)
        except (httpx2.NetworkError, httpx2.RemoteProtocolError) as exc:
            if isinstance(exc, httpx2.ConnectError):
                raise self._lost(exc) from exc
            log.warning("engine.connection_broken", server=self.name, path=path, error=type(exc).__name__)
        except httpx2.HTTPError as exc:
            raise self._lost(exc) from exc
        try:
            if before_again is not None:
                await before_again()
            return await self._once(method, path, body)
        except httpx2.HTTPError as exc:
            raise self._lost(exc) from exc

    async def _once(self, method: str, path: str, body: bytes | None) -> bytes:
        if self._client.is_closed:  # the engine was ended, and some call comes late
            raise WorkerLost(worker=self.name, cause="it was ended")
        headers = None if body is None else {"content-type": "application/json"}
        answer = await self._client.request(method, path, content=body, headers=headers)
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            raise ServerRefused(answer.status_code, " ".join(answer.text.split()))
        return answer.content

    def _decoded(self, data: bytes, reply: type[T]) -> T:
        try:
            return msgspec.json.decode(data or b"null", type=reply)
        except msgspec.MsgspecError as exc:
            raise Transient(f"{self.name} answered what cannot be understood: {exc}") from exc

    def _lost(self, error: Exception) -> WorkerLost:
        return WorkerLost(worker=self.name, cause=f"{type(error).__name__}: {error}".removesuffix(": "))


def new_client(url: str) -> httpx2.AsyncClient:
    """Return a client with one pool, without bounds on requests in flight or on their time: callers own the clock."""
    return httpx2.AsyncClient(
        base_url=url,
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=KEPT, keepalive_expiry=IDLE_S),
        trust_env=False,
    )

"""From the options of a job to an engine over a server that answers."""

import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import torch
import torch.distributed

from backends.engines._http.adapters import lora_of
from backends.engines._http.cargo import ByBroadcast, ByFolder
from backends.engines._http.connection import Connection, ServerRefused, new_client
from backends.engines._http.dialect import Dialect
from backends.engines._http.engine import HttpEngine, open_engine
from backends.engines._http.files import WeightFiles
from backends.engines._http.opening import ServerOptions
from backends.engines._http.routed import RoutedDialect
from backends.roles import command as program
from protocols.adapters import Host
from protocols.aio import deadline
from protocols.errors import Transient, UserError, WorkerLost

_ASK_EVERY_S = 0.2
_REMOVE_S = 30.0


@asynccontextmanager
async def open_server_engine(
    cfg: ServerOptions, host: Host, speak: Callable[[Connection], Dialect]
) -> AsyncGenerator[HttpEngine]:
    """Attach to a server, or start it; wait until it answers, and open the port over it.

    Args:
        cfg: Which server.
        host: Which of the job's engines this is, and where weights lie.
        speak: Makes the dialect over a connection.

    Raises:
        UserError: There is no server for this engine, or no place for weights, or no GPU to send them from.
        WorkerLost: A server that is to run already cannot be reached.
        DeadlineExceeded: One that was started does not answer.
        PortFailed: It ended by itself (also later, into the block).
    """
    number = 0 if host.ranks is None else host.ranks.role
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_started(cfg, host)) if cfg.command else _attached(cfg, number)

        async def speak_to(url: str) -> Dialect:
            return speak(Connection(await stack.enter_async_context(new_client(url)), url))

        dialect = await speak_to(url)
        if cfg.router is not None:
            dialect = RoutedDialect(dialect, [await speak_to(server) for server in cfg.urls])
        await (_wait_until_ready(dialect, url, cfg.start_s) if cfg.command else _see(dialect, url))
        if cfg.weights == "file":
            shipping = ByFolder(await stack.enter_async_context(_weight_files(cfg, host, number)))
        else:
            shipping = ByBroadcast(cfg.weights, _device(cfg, host))
        yield await stack.enter_async_context(
            open_engine(
                dialect, host.payloads, shipping, name=url, tolerance=cfg.probe_tolerance, in_flight=cfg.in_flight
            )
        )


def _device(cfg: ServerOptions, host: Host) -> torch.device:
    if cfg.weights == "gloo":
        return torch.device("cpu")
    if not host.devices or not torch.distributed.is_nccl_available():
        raise UserError("engine.weights = 'nccl' needs a GPU where the engine's worker runs; weights = 'gloo' does not")
    sees_its_own_only = torch.cuda.device_count() == len(host.devices)  # as a worker that is a process does
    return torch.device("cuda", 0 if sees_its_own_only else host.devices[0])


def _attached(cfg: ServerOptions, number: int) -> str:
    if cfg.router is not None:
        if number > 0:
            raise UserError("engine.router: the servers behind it are one engine; set engines = 1")
        return cfg.router
    if number >= len(cfg.urls):
        why = f"it names {len(cfg.urls)} servers, and there is an engine number {number + 1}"
        raise UserError(f"engine.urls: {why}; name one for each engine, or set engines = {len(cfg.urls)}")
    return cfg.urls[number]


@asynccontextmanager
async def _started(cfg: ServerOptions, host: Host) -> AsyncGenerator[str]:
    """Start the server on a port that is free now; should somebody else take it first, the start fails."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    words = tuple(word.replace("{port}", str(port)) for word in cfg.command)
    async with program.open(program.Config(command=words), host):
        yield f"http://127.0.0.1:{port}"


async def _wait_until_ready(dialect: Dialect, url: str, start_s: float) -> None:
    with deadline(f"the start of {url}", start_s):
        while True:
            try:
                await dialect.healthy()
            except (WorkerLost, ServerRefused):  # it does not listen yet, or loads its model
                await anyio.sleep(_ASK_EVERY_S)
            else:
                return


async def _see(dialect: Dialect, url: str) -> None:
    try:
        await dialect.healthy()
    except ServerRefused as exc:
        raise Transient(f"{url} is not well: {exc}") from exc


@asynccontextmanager
async def _weight_files(cfg: ServerOptions, host: Host, number: int) -> AsyncGenerator[WeightFiles]:
    made = None
    if cfg.weights_dir is not None:
        root = Path(host.site.job_dir) / cfg.weights_dir
    elif host.site.run_dir is not None:
        root = Path(host.site.run_dir) / "weights"
    else:
        root = made = Path(tempfile.mkdtemp(prefix="conductor-weights-"))
    try:
        files = await anyio.to_thread.run_sync(WeightFiles, root / f"engine-{number}", lora_of(host.site))
    except OSError as exc:
        why = f"weights cannot be written to {root}: {exc}"
        raise UserError(f"{why}; name another folder in engine.weights_dir") from exc
    try:
        yield files
    finally:
        with anyio.move_on_after(_REMOVE_S, shield=True):
            await anyio.to_thread.run_sync(files.remove)
            if made is not None:
                await anyio.to_thread.run_sync(shutil.rmtree, made, True)

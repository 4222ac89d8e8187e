"""Asks a run that goes on in another process. Blocking, for the command line."""

import socket
from pathlib import Path

import msgspec

from conductor.control.messages import Reply, Request, encode
from conductor.control.place import find
from protocols.errors import PortFailed

_CONNECT_S = 5.0
_CHUNK = 1 << 16
_LARGEST = 1 << 24


def ask(run_dir: Path, request: Request, *, patience_s: float | None) -> Reply | None:
    """Ask the run in a folder; None: nobody answers there.

    Args:
        run_dir: The folder of the run.
        request: What is asked.
        patience_s: How long the answer may take; None: as long as it takes.

    Raises:
        PortFailed: The run is there, and gave no answer.
    """
    path = find(run_dir)
    if path is None:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_CONNECT_S)
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return None
        except OSError as exc:
            raise PortFailed(f"{path} cannot be asked: {exc}") from exc
        client.settimeout(patience_s)
        try:
            client.sendall(encode(request))
            return msgspec.json.decode(_line(client), type=Reply)
        except TimeoutError as exc:
            raise PortFailed(f"the run did not answer within {patience_s:g} s: its loop may be blocked") from exc
        except (OSError, msgspec.MsgspecError) as exc:
            raise PortFailed(f"the run ended before it answered, or answered what is no answer: {exc}") from exc


def _line(client: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _LARGEST:
        chunk = client.recv(_CHUNK)
        if not chunk:
            raise ConnectionResetError("it closed the connection")
        line += chunk
    return line

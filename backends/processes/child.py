"""Starting a worker's process, and ending it: everything that needs no event loop."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backends._leftovers import MARK
from backends._machine import accelerators, usable_cpus
from protocols.backend import WorkloadSpec

_REAP_S = 2.0  # a killed process is gone long before, unless the kernel holds it


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process that was started and not reaped, so that its number and its group's are nobody else's.

    Attributes:
        process: Leads a session and a process group of its own.
        pidfd: Readable once it has ended.
        socket: The controller's end of the channel.
        output: The reading end of what it writes to stdout and stderr.
        mark: What ``leftovers`` finds it by, and all that it started.
    """

    process: subprocess.Popen[bytes]
    pidfd: int
    socket: socket.socket
    output: int
    mark: str

    def terminate(self) -> None:
        """Ask it to close."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """End it and its group, also where it stands still. Not after ``reap``."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Take its exit code and close what led to it. It blocks until it has ended, for a moment at most."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_REAP_S)
        os.close(self.pidfd)
        os.close(self.output)
        self.socket.close()

    def ending(self) -> str:
        """Return how it ended, for people; only after ``reap``."""
        code = self.process.returncode
        if code is None:
            return "it was killed, and the system holds on to it"
        return f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it exited with {code}"


def start_child(spec: WorkloadSpec, mark: str, *, compute_processes: int) -> Child:
    """Start a bare interpreter for a worker, from the thread that is to outlive it: it dies with this thread.

    Not ``multiprocessing``, which runs the caller's main script again, nor a fork, which copies locks that are held.

    Args:
        spec: What it will host.
        mark: Its own.
        compute_processes: How many workers share the CPUs, where ``spec`` binds it to none.

    Raises:
        OSError: There is no room for another process or descriptor.
    """
    ours, its = socket.socketpair()
    output, written = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-P", "-X", "faulthandler", "-m", "backends.processes.worker",
             str(its.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=written, stderr=written, pass_fds=[its.fileno()],
            env=_environment(spec, mark, compute_processes),
            start_new_session=True,  # a Ctrl-C in the terminal is for the run, not for its workers
        )  # fmt: skip
    except BaseException:
        ours.close()
        os.close(output)
        raise
    finally:
        its.close()
        os.close(written)
    return Child(process=process, pidfd=os.pidfd_open(process.pid), socket=ours, output=output, mark=mark)


def _environment(spec: WorkloadSpec, mark: str, compute_processes: int) -> dict[str, str]:
    """Return the variables of a worker; those of the job come before ours, but for the ones that it is found by."""
    threads = len(spec.cpus) or max(1, len(usable_cpus()) // compute_processes)
    visible = accelerators()
    path = [spec.environment.get("PYTHONPATH"), *(entry or str(Path.cwd()) for entry in sys.path)]
    return {
        "OMP_NUM_THREADS": str(threads),  # more threads than cores, and each waits for the others
        **os.environ,
        "PYTHONUNBUFFERED": "1",  # the last lines of one that is killed are the ones that matter
        **({"CUDA_VISIBLE_DEVICES": ",".join(visible[number] for number in spec.devices)} if visible else {}),
        **spec.environment,
        "PYTHONPATH": os.pathsep.join(entry for entry in path if entry),
        MARK: mark,
    }

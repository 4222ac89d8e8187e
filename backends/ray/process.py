"""The process of a worker: what it is made of, and its end. Plain blocking functions, for whichever node it is on."""

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

from backends._leftovers import MARK, end_marked
from backends._log_lines import write_lines
from backends.ray.messages import Facts, LaunchOrder

_START_FIELD = 19  # of /proc/PID/stat behind the name, which may hold anything: man 5 proc, (22) starttime
_BY_ITSELF_S = 2.0  # Ray has told it to end; it calls a process that others kill a crash, on everybody's screen
_GONE_S = 5.0


def started_at(pid: int) -> int | None:
    """Return when a process was started, in clock ticks since the machine was booted; None: there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[_START_FIELD])


def prepare(order: LaunchOrder) -> None:
    """Make this process that of a worker, before anything that computes is imported."""
    spec = order.spec
    os.environ.update(
        {
            "OMP_NUM_THREADS": str(order.threads),  # more threads than cores, and each waits for the others
            "CUDA_VISIBLE_DEVICES": ",".join(str(number) for number in spec.devices),
            **spec.environment,
            MARK: order.mark,
        }
    )
    sys.path[:0] = [entry for entry in spec.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    write_lines()
    if spec.cpus:
        os.sched_setaffinity(0, spec.cpus)
    if spec.site.run_dir is not None:
        with suppress(OSError):  # a node that does not have the run's folder: Ray keeps what is written
            _write_to(Path(spec.site.run_dir) / "logs" / f"{spec.worker_id.replace('/', '-')}.log")


def _write_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(file, standard)
    os.close(file)


def end_worker(facts: Facts, mark: str) -> list[int]:
    """Wait until a worker's process has ended, kill it when that takes long, and kill all that it started.

    Returns:
        Those that are not gone within a few seconds.
    """
    left = [] if _ended(facts) else [facts.pid]
    return left + end_marked(mark)


def _ended(facts: Facts) -> bool:
    try:
        process = os.pidfd_open(facts.pid)
    except OSError:
        return True
    try:
        if started_at(facts.pid) != facts.started:
            return True
        if _ends(process, _BY_ITSELF_S):
            return True
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        return _ends(process, _GONE_S)
    finally:
        os.close(process)


def _ends(process: int, within_s: float) -> bool:
    ready, _, _ = select.select([process], [], [], within_s)
    return bool(ready)

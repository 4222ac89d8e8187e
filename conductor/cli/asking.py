"""``conductor status``, ``why``, ``stop``, ``checkpoint``, ``scale``: what a run that goes on is asked."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from conductor.control.client import ask
from conductor.control.messages import Command, Reply, Request
from conductor.core.explanation import explain, explain_engines
from conductor.core.status import RunStatus, WorkerStanding
from conductor.epilogue import epilogue, sentences
from conductor.loading import read_job
from protocols.errors import PortFailed, UserError

_PATIENCE_S = 30.0


def show_status(run_dir: str, *, as_json: bool) -> int:
    """Print where a run stands, or what became of it; returns the exit code."""
    reply = _asked(run_dir, "status")
    if reply is None or reply.status is None:
        return _tell_the_end(run_dir, as_json=as_json)
    if as_json:
        click.echo(json.dumps({"live": True, "status": msgspec.to_builtins(reply.status)}))
    else:
        click.echo("\n".join(_lines(reply.status)))
    return 0


def show_why(run_dir: str, *, as_json: bool) -> int:
    """Print what a run waits for right now, in words; returns the exit code."""
    reply = _asked(run_dir, "why")
    if reply is None or reply.why is None:
        return _tell_the_end(run_dir, as_json=as_json)
    click.echo(json.dumps({"live": True, **msgspec.to_builtins(reply.why)}) if as_json else str(reply.why))
    return 0


def stop(run_dir: str) -> int:
    """Ask a run to stop, as the first signal does; returns the exit code."""
    reply = _required(run_dir, _asked(run_dir, "stop"))
    click.echo(f"{reply.done}: what is lent out is aborted, what was trained is saved")
    return 0


def write_checkpoint(run_dir: str) -> int:
    """Let a run write a checkpoint after its current step, and print the folder; returns the exit code."""
    click.echo(_required(run_dir, _asked(run_dir, "checkpoint", patience_s=None)).done)
    return 0


def scale(run_dir: str, wanted: str) -> int:
    """Let a run have more workers of a role, or fewer, and print what came of it; returns the exit code.

    Args:
        run_dir: The folder of the run.
        wanted: ``rollout=4``.
    """
    role, _, size = wanted.partition("=")
    if not (role and size.isdecimal()):
        raise UserError(f"{wanted!r} says no size of a role; write rollout=4")
    request = Request(command="scale", role=role, size=int(size))
    click.echo(_required(run_dir, _answered(run_dir, request, patience_s=None)).done)
    return 0


def _asked(run_dir: str, command: Command, patience_s: float | None = _PATIENCE_S) -> Reply | None:
    return _answered(run_dir, Request(command=command), patience_s=patience_s)


def _answered(run_dir: str, request: Request, *, patience_s: float | None) -> Reply | None:
    reply = ask(Path(run_dir), request, patience_s=patience_s)
    if reply is not None and reply.error:
        raise UserError(reply.error) if reply.refused else PortFailed(reply.error)
    return reply


def _required(run_dir: str, reply: Reply | None) -> Reply:
    if reply is None:
        raise UserError("\n".join(sentences(epilogue(read_job(run_dir)), run_dir)))
    return reply


def _tell_the_end(run_dir: str, *, as_json: bool) -> int:
    found = epilogue(read_job(run_dir))
    if as_json:
        click.echo(json.dumps({"live": False, **msgspec.to_builtins(found)}))
    else:
        click.echo("\n".join(sentences(found, run_dir)))
    return 0


def _lines(status: RunStatus) -> Iterator[str]:
    yield f"run {status.name}, {status.phase}: step {status.step} of {status.steps} after {status.seconds:.0f} s"
    pace = {"samples_per_s": "{:.1f} samples/s", "tokens_per_s": "{:.0f} tokens/s", "step_s": "{:.1f} s a step"}
    if status.throughput:
        yield f"pace     {', '.join(form.format(status.throughput[name]) for name, form in pace.items())}"
    served = "none" if status.served is None else f"v{status.served}"
    staged = "" if status.staged is None else f", v{status.staged} waits to be published"
    age = "" if status.oldest is None else f"; the oldest token that waits is {status.oldest} old"
    yield f"weights  the trainer is at v{status.trained}, the engines serve {served}{staged}{age}"
    groups = status.accounts
    yield (
        f"groups   {groups.admitted} admitted = {groups.committed} committed + {groups.filtered} filtered"
        f" + {groups.dropped} dropped + {groups.open} open"
    )
    states = ", ".join(f"{count} {state}" for state, count in status.states.items())
    yield f"slots    {status.running} of {status.slots} lent out, {status.grants} more may be; {states or 'none open'}"
    engines = list(explain_engines(status.engines, served=status.served))
    yield from (f"engine   {sentence.removeprefix('engine ')}" for sentence in engines)
    yield from (f"worker   {_worker(worker)}" for worker in status.workers if worker.pid is not None)
    if status.incidents:
        yield f"lost     workers, {status.incidents} times: conductor inspect --incidents tells of it"
    if status.scaled:
        yield f"size     {status.scaled}"
    yield from (f"failed   {count} times {kind}" for kind, count in sorted(status.failures.items()))
    yield f"saved    {status.checkpoint or 'nothing yet'}"
    first, *more = explain(status).waits_for
    yield f"now      {first}"
    yield from (f"         {sentence}" for sentence in more if sentence not in engines)
    yield f"quiet    for {status.quiet_s:.1f} s of at most {status.stall_s:g} s"


def _worker(worker: WorkerStanding) -> str:
    return f"{worker.name} is process {worker.pid}" if worker.running else f"{worker.name} is lost"

"""One run from the command line: progress, signals, the result or what went wrong, the exit code."""

import signal
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from conductor.checkpoints import complete, folder_of
from conductor.cli.signals import Ending, under_signals
from conductor.cli.watching import watching
from conductor.conductor import Conductor
from conductor.config import RunConfig
from conductor.jobfile import holds_run
from conductor.observe.log import configure_adapters
from conductor.observe.progress import LiveProgress, open_progress, show_result
from conductor.result import RunResult
from protocols.errors import ConductorError, CorruptLedger, Stopped
from protocols.fleet import Plan

_OURS = 4
"""Exit code of the errors that say a rule of the project itself was broken."""


def run_job(cfg: RunConfig, *, quiet: bool, as_json: bool, resume: bool = False, plan: Plan | None = None) -> int:
    """Run a job and show it to people; returns the exit code."""
    with open_progress(cfg.steps, sys.stderr if as_json else sys.stdout, quiet=quiet) as observer:
        configure_adapters(cfg.run_dir, to_stderr=not quiet)
        run = partial(
            Conductor.run, cfg, observer=observer, to_stderr=not quiet, resume=resume, control=True, plan=plan
        )
        with watching(cfg.run_dir, observer.look if isinstance(observer, LiveProgress) else None):
            ending: Ending[RunResult] = anyio.run(under_signals, run, _say)
    if ending.value is not None:
        _show(ending.value, quiet=quiet, as_json=as_json)
        return 0
    asked_to = isinstance(ending.error, Stopped)
    if ending.error is not None and not asked_to:
        _report(ending.error)
    failed = "stopped" if ending.error is None or asked_to else _headline(ending.error)
    click.echo("; ".join([failed, _whereabouts(cfg.run_dir), *_kept(cfg.run_dir, ending.error)]), err=True)
    if ending.stopped_by is not None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # once more, and Python's own exit would fail with a traceback
        return 128 + ending.stopped_by
    return ending.error.exit_code if isinstance(ending.error, ConductorError) else 1


def result_json(result: RunResult) -> str:
    """Return what ``--json`` prints, on one line."""
    values: dict[str, Any] = {
        "steps": result.steps,
        "reward_first": result.reward_first,
        "reward_last": result.reward_last,
        "samples_per_s": result.samples_per_s,
        "accounts": result.accounts,
        "run_dir": result.run_dir,
        "checkpoint": result.checkpoint,
    }
    if result.evaluations:
        values["evaluations"] = result.evaluations
    return msgspec.json.encode(values).decode()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # looked up now: a live display stands before it
    sys.stderr.flush()


def _show(result: RunResult, *, quiet: bool, as_json: bool) -> None:
    if not as_json:
        show_result(result, sys.stdout)
        return
    if not quiet:
        show_result(result, sys.stderr)
    click.echo(result_json(result))


def _report(error: Exception) -> None:
    """Say what one line cannot; a traceback only where the program is to blame and not its user."""
    if isinstance(error, ConductorError) and error.exit_code != _OURS:
        lines = [*error.message.splitlines(), *getattr(error, "__notes__", [])]
        if len(lines) > 1:
            click.echo("\n".join(lines), err=True)
    else:
        click.echo("".join(traceback.format_exception(error)).rstrip(), err=True)


def _headline(error: Exception) -> str:
    first, *_ = str(error).splitlines() or [""]
    return f"failed: {type(error).__name__}: {first.rstrip(':')}"


def _kept(run_dir: str | None, error: Exception | None) -> Iterator[str]:
    """Say what of a run that ended early is there, and how to go on; nothing where there is no going on."""
    if run_dir is None or not holds_run(Path(run_dir)) or isinstance(error, CorruptLedger):
        return
    try:
        saved = complete(folder_of(run_dir))
    except OSError:
        saved = {}
    yield f"kept: {saved[max(saved)]}" if saved else "kept: the record, and no checkpoint"
    yield f"go on with: conductor resume {run_dir}"


def _whereabouts(run_dir: str | None) -> str:
    log = None if run_dir is None else Path(run_dir) / "log.jsonl"
    return "there is no log" if log is None or not log.exists() else f"the log is {log}"

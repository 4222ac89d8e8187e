"""The commands."""

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import click

from conductor.cli.asking import show_status, show_why, stop, write_checkpoint
from conductor.cli.inspecting import inspect_run
from conductor.cli.running import run_job
from conductor.cli.summary import summary
from conductor.config import RunConfig
from conductor.loading import load_config, read_job
from protocols.errors import ConductorError, ConfigError

_JOB = click.argument("job", type=click.Path())
_SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="Lay a value over the job, as in --set train.lr=1e-3. May be repeated.",
)

_RUN_DIR = click.argument("run_dir", metavar="RUN_DIR", type=click.Path())
_QUIET = click.option("--quiet", is_flag=True, help="Show neither progress nor log, only the result.")
_JSON = click.option("--json", "as_json", is_flag=True, help="End standard output with one JSON object.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="conductor-rl", prog_name="conductor")
def main() -> None:
    """Conduct reinforcement-learning post-training of language models.

    Exit codes: 0 done; 1 a bug nobody foresaw; 2 the job is wrong; 3 the run cannot go on; 4 a rule of
    the controller was broken; 130 and 143 stopped by a signal, or by conductor stop (130).
    """


@main.command()
@_JOB
@_SET
@click.option("--run-dir", metavar="FOLDER", help="Where to write. A new folder in runs/ unless given.")
@click.option("--resume", is_flag=True, help="Go on with the run that --run-dir holds; begin it if there is none.")
@_QUIET
@_JSON
def run(job: str, overrides: tuple[str, ...], run_dir: str | None, *, resume: bool, quiet: bool, as_json: bool) -> None:
    """Run the JOB that a TOML or YAML file describes."""
    with _interruptible():
        cfg = _loaded(partial(load_config, job, overrides=overrides, run_dir=run_dir, resume=resume))
        sys.exit(run_job(cfg, quiet=quiet, as_json=as_json, resume=resume))


@main.command()
@_RUN_DIR
@_QUIET
@_JSON
def resume(run_dir: str, *, quiet: bool, as_json: bool) -> None:
    """Go on with the run that RUN_DIR holds, from its last complete checkpoint."""
    with _interruptible():
        sys.exit(run_job(_loaded(partial(read_job, run_dir)), quiet=quiet, as_json=as_json, resume=True))


@main.command()
@_RUN_DIR
@click.option("--lease", metavar="ID", help="Tell the history of one lease, L17, instead.")
@_JSON
def inspect(run_dir: str, lease: str | None, *, as_json: bool) -> None:
    """Prove from its record alone where every group of the run in RUN_DIR is.

    The run may be going on. Exit code 4: the books do not balance, or the record is damaged.
    """
    _exit(lambda: inspect_run(read_job(run_dir), lease=lease, as_json=as_json))


@main.command()
@_RUN_DIR
@_JSON
def status(run_dir: str, *, as_json: bool) -> None:
    """Say where the run in RUN_DIR stands, or what became of it."""
    _exit(lambda: show_status(run_dir, as_json=as_json))


@main.command()
@_RUN_DIR
@_JSON
def why(run_dir: str, *, as_json: bool) -> None:
    """Say what the run in RUN_DIR waits for right now, and what would let it go on."""
    _exit(lambda: show_why(run_dir, as_json=as_json))


@main.command(name="stop")
@_RUN_DIR
def stop_run(run_dir: str) -> None:
    """Stop the run in RUN_DIR as a first signal does: abort what is lent out, save what was trained."""
    _exit(lambda: stop(run_dir))


@main.command()
@_RUN_DIR
def checkpoint(run_dir: str) -> None:
    """Let the run in RUN_DIR write a checkpoint after its current step; prints its folder."""
    _exit(lambda: write_checkpoint(run_dir))


@main.command()
@_JOB
@_SET
def validate(job: str, overrides: tuple[str, ...]) -> None:
    """List everything that is wrong with a JOB, without starting anything."""
    cfg = _loaded(partial(load_config, job, overrides=overrides), to_stderr=False)
    click.echo(f"ok\n{summary(cfg)}")


def _exit(act: Callable[[], int]) -> NoReturn:
    """Exit with what an act returns, or with the code of its error."""
    try:
        sys.exit(act())
    except ConductorError as exc:
        click.echo(exc.message, err=True)
        sys.exit(exc.exit_code)


@contextmanager
def _interruptible() -> Generator[None]:
    try:
        yield
    except KeyboardInterrupt:  # while the job is being read, before a run could hear it
        click.echo("stopped before the run began", err=True)
        sys.exit(128 + signal.SIGINT)


def _loaded(load: Callable[[], RunConfig], *, to_stderr: bool = True) -> RunConfig:
    try:
        return load()
    except ConfigError as exc:
        click.echo(exc.message, err=to_stderr)
        sys.exit(exc.exit_code)

"""The commands: ``conductor run`` and ``conductor validate``."""

import signal
import sys

import click

from conductor.cli.running import run_job
from conductor.cli.summary import summary
from conductor.config import RunConfig
from conductor.loading import load_config
from protocols.errors import ConfigError

_JOB = click.argument("job", type=click.Path())
_SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="Lay a value over the job, as in --set train.lr=1e-3. May be repeated.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="conductor-rl", prog_name="conductor")
def main() -> None:
    """Conduct reinforcement-learning post-training of language models.

    Exit codes: 0 done; 1 a bug nobody foresaw; 2 the job is wrong; 3 the run cannot go on; 4 a rule of
    the controller was broken; 130 and 143 stopped by a signal.
    """


@main.command()
@_JOB
@_SET
@click.option("--run-dir", metavar="FOLDER", help="Where to write. A new folder in runs/ unless given.")
@click.option("--quiet", is_flag=True, help="Show neither progress nor log, only the result.")
@click.option("--json", "as_json", is_flag=True, help="End standard output with one JSON object.")
def run(job: str, overrides: tuple[str, ...], run_dir: str | None, *, quiet: bool, as_json: bool) -> None:
    """Run the JOB that a TOML or YAML file describes."""
    try:
        sys.exit(run_job(_load(job, overrides, run_dir, to_stderr=True), quiet=quiet, as_json=as_json))
    except KeyboardInterrupt:  # while the job is being read, before a run could hear it
        click.echo("stopped before the run began", err=True)
        sys.exit(128 + signal.SIGINT)


@main.command()
@_JOB
@_SET
def validate(job: str, overrides: tuple[str, ...]) -> None:
    """List everything that is wrong with a JOB, without starting anything."""
    cfg = _load(job, overrides, None, to_stderr=False)
    click.echo(f"ok\n{summary(cfg)}")


def _load(job: str, overrides: tuple[str, ...], run_dir: str | None, *, to_stderr: bool) -> RunConfig:
    try:
        return load_config(job, overrides=overrides, run_dir=run_dir)
    except ConfigError as exc:
        click.echo(exc.message, err=to_stderr)
        sys.exit(exc.exit_code)

"""The commands."""

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

import click

from conductor.cli.asking import scale, show_status, show_why, stop, write_checkpoint
from conductor.cli.inspecting import inspect_run
from conductor.cli.planning import plan_job
from conductor.cli.running import run_job
from conductor.cli.serving import engine
from conductor.cli.summary import summary
from conductor.fleet.planned import read_plan
from conductor.loading import load_config, read_job
from protocols.errors import ConductorError, ConfigError
from protocols.fleet import Plan

T = TypeVar("T")

_JOB = click.argument("job", type=click.Path())
_SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="Lay a value over the job, as in --set train.lr=1e-3. May be repeated.",
)

_BACKEND = click.option("--backend", metavar="KIND", help="Where it runs: short for --set backend.kind=KIND.")
_RUN_DIR = click.argument("run_dir", metavar="RUN_DIR", type=click.Path())
_QUIET = click.option("--quiet", is_flag=True, help="Show neither progress nor log, only the result.")
_PLAN = click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    type=click.Path(),
    help="Launch the workers where a plan puts them that conductor plan wrote. It may have been edited.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="End standard output with one JSON object.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="conductor-rl", prog_name="conductor")
def main() -> None:
    """Conduct reinforcement-learning post-training of language models.

    Exit codes: 0 done; 1 a bug nobody foresaw; 2 the job is wrong; 3 the run cannot go on; 4 a rule of
    the controller was broken; 130 and 143 stopped by a signal, or by conductor stop (130).
    """


main.add_command(engine)


@main.command()
@click.argument("folder", default=".", type=click.Path())
def init(folder: str) -> None:
    """Write a commented job and its task into FOLDER, which run as they are."""
    from conductor.cli.starting import write_starter  # noqa: PLC0415 - a run needs none of it

    _exit(lambda: write_starter(folder))


@main.command()
@_JOB
@_SET
@_BACKEND
@click.option("--run-dir", metavar="FOLDER", help="Where to write. A new folder in runs/ unless given.")
@click.option("--resume", is_flag=True, help="Go on with the run that --run-dir holds; begin it if there is none.")
@_PLAN
@_QUIET
@_JSON
def run(
    job: str,
    overrides: tuple[str, ...],
    backend: str | None,
    run_dir: str | None,
    plan_file: str | None,
    **how: bool,
) -> None:
    """Run the JOB that a TOML or YAML file describes."""
    with _interruptible():
        resume, overrides = how.pop("resume"), _on_backend(backend, overrides)
        cfg = _loaded(partial(load_config, job, overrides=overrides, run_dir=run_dir, resume=resume))
        sys.exit(run_job(cfg, **how, resume=resume, plan=_plan_in(plan_file)))


@main.command()
@_RUN_DIR
@_PLAN
@_QUIET
@_JSON
def resume(run_dir: str, plan_file: str | None, *, quiet: bool, as_json: bool) -> None:
    """Go on with the run that RUN_DIR holds, from its last complete checkpoint."""
    with _interruptible():
        cfg = _loaded(partial(read_job, run_dir))
        sys.exit(run_job(cfg, quiet=quiet, as_json=as_json, resume=True, plan=_plan_in(plan_file)))


@main.command()
@_RUN_DIR
@click.option("--lease", metavar="ID", help="Tell the history of one lease, L17, instead.")
@click.option("--sample", metavar="ID", help="Tell the way of one sample, L17/0/3: lease, attempt, index.")
@click.option("--step", type=click.IntRange(min=1), help="Tell what one train step trained.")
@click.option("--incidents", is_flag=True, help="Tell of lost workers, and what became of them, instead.")
@click.option("--checkpoints", is_flag=True, help="Tell which checkpoints there are, and why, instead.")
@_JSON
def inspect(run_dir: str, *, as_json: bool, **about: Any) -> None:
    """Prove from its record alone where every group of the run in RUN_DIR is.

    The run may be going on. Exit code 4: the books do not balance, or the record is damaged.
    """
    asked: Any = {what: str(which) for what, which in about.items() if which}
    _exit(lambda: inspect_run(read_job(run_dir), asked, as_json=as_json))


@main.command()
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), help="Where to write; RUN_DIR/report.html by default."
)
def report(run_dirs: tuple[str, ...], output: str | None) -> None:
    """Write a page about the run in RUN_DIR that opens offline; several runs are laid over one another.

    The runs may be going on.
    """
    from conductor.cli.reporting import write_report  # noqa: PLC0415 - a run needs none of it

    _exit(lambda: write_report(run_dirs, output))


@main.command()
@_RUN_DIR
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), help="Where to write; RUN_DIR/trace.json by default."
)
@click.option("--otlp", metavar="URL", help="Send it to a collector of OpenTelemetry instead: http://localhost:4318.")
def trace(run_dir: str, output: str | None, otlp: str | None) -> None:
    """Write the timeline of the run in RUN_DIR for Perfetto: engines, graders, trainer, publisher, checkpoints.

    The run may be going on.
    """
    from conductor.cli.reporting import send_trace, write_trace  # noqa: PLC0415 - a run needs none of it

    _exit(lambda: write_trace(run_dir, output) if otlp is None else send_trace(run_dir, otlp))


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


@main.command(name="scale")
@_RUN_DIR
@click.argument("wanted", metavar="ROLE=N")
def scale_run(run_dir: str, wanted: str) -> None:
    """Let the run in RUN_DIR have N workers of a role, rollout=4: new ones join it, others finish and end."""
    _exit(lambda: scale(run_dir, wanted))


@main.command()
@_JOB
@_SET
@_BACKEND
def validate(job: str, overrides: tuple[str, ...], backend: str | None) -> None:
    """List everything that is wrong with a JOB, without starting anything."""
    overrides = _on_backend(backend, overrides)
    cfg = _loaded(partial(load_config, job, overrides=overrides), to_stderr=False)
    click.echo(f"ok\n{summary(cfg)}")


@main.command()
@_JOB
@_SET
@_BACKEND
@click.option("-o", "--output", metavar="FILE", type=click.Path(), help="Write the plan there, for run --plan.")
@_JSON
def plan(job: str, overrides: tuple[str, ...], backend: str | None, output: str | None, *, as_json: bool) -> None:
    """Say where every worker of a JOB would run, and with what, without starting any.

    Exit code 2: there is no such place; every problem of the job and of its place is listed.
    """
    with _interruptible():
        _exit(lambda: plan_job(job, _on_backend(backend, overrides), output=output, as_json=as_json))


@main.command()
@_JOB
@_SET
@click.option("--engines", type=click.IntRange(min=1), help="How many engines. As in the job unless given.")
@click.option("--slots", type=click.IntRange(min=1), help="Samples that one engine runs at once.")
@click.option("--tail", metavar="DISTRIBUTION", help="Seconds of one sample that runs alone: lognormal:1.0.")
@click.option("--train", metavar="DISTRIBUTION", help="Seconds of a train step: 1.0.")
@click.option("--publish", metavar="DISTRIBUTION", help="Seconds that an engine stands still for new weights: 0.")
@click.option("--slowdown", type=float, help="A token takes longer by this share for each other sample that runs.")
@click.option("--steps", default=40, show_default=True, help="Train steps to simulate of each setting.")
@click.option("--sweep", metavar="NAME=V,V", help="A field of the job and its values, one row each: max_age=0,1,2,4.")
@click.option("--faults", default="", metavar="PLAN", help="What goes wrong: a plan, or with --seeds: all.")
@click.option("--seeds", type=click.IntRange(min=1), help="Search so many small runs for one that breaks a law.")
@click.option("--replay", type=int, metavar="SEED", help="Print all that happens in one run of the search.")
@_JSON
def simulate(job: str, overrides: tuple[str, ...], **asked: Any) -> None:
    """Run the JOB's controller under a virtual clock, over engines and a trainer that only take time.

    Answers before anything is rented: how fast, how old, who is idle, and what limits it. A DISTRIBUTION is a
    number of seconds, lognormal:SIGMA (of the logarithm; the mean is 1 s), lognormal:SIGMA:MEAN, or
    empirical:RUN_DIR, from what a finished run measured.
    """
    with _interruptible():
        _exit(lambda: _simulate(job, overrides, asked))


def _simulate(job: str, overrides: tuple[str, ...], asked: dict[str, Any]) -> int:
    from conductor.cli import simulating  # noqa: PLC0415 - a run needs none of it

    names = {"tail": "sample", "train": "train", "publish": "publish", "slots": "slots", "slowdown": "slowdown"}
    engines = () if asked["engines"] is None else (f"engines={asked['engines']}",)
    name, _, values = (asked["sweep"] or "").partition("=")
    request = simulating.Request(
        job=job,
        overrides=(*overrides, *engines),
        world={names[key]: asked[key] for key in names if asked[key] is not None},
        steps=asked["steps"],
        sweep=(name, tuple(values.split(","))) if asked["sweep"] else None,
        faults=asked["faults"],
        as_json=asked["as_json"],
    )
    if asked["replay"] is not None:
        return simulating.replay(request, asked["replay"])
    if asked["seeds"] is not None:
        return simulating.search_faults(request, asked["seeds"])
    return simulating.simulate(request)


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


def _plan_in(path: str | None) -> Plan | None:
    return None if path is None else _loaded(partial(read_plan, path))


def _on_backend(kind: str | None, overrides: tuple[str, ...]) -> tuple[str, ...]:
    return overrides if kind is None else (f"backend.kind={kind}", *overrides)


def _loaded(load: Callable[[], T], *, to_stderr: bool = True) -> T:
    try:
        return load()
    except ConfigError as exc:
        click.echo(exc.message, err=to_stderr)
        sys.exit(exc.exit_code)

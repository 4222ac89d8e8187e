"""``conductor simulate``: the table of settings, the fault search, the replay of one of its runs."""

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import click
import msgspec
import structlog
from rich.console import Console
from rich.table import Table

from conductor.config import RunConfig
from conductor.loading import load_config
from conductor.simulation.laws import broken
from conductor.simulation.life import BACKEND, in_simulation, live
from conductor.simulation.report import Row, row, steps_to_simulate
from conductor.simulation.search import IMPOSSIBLE, STAGES, Findings, run_schedule, search
from conductor.simulation.shapes import draw
from conductor.validation import find_problems
from protocols.adapters import resolve
from protocols.errors import ConfigError, InvariantError, Problem
from protocols.faults import KINDS, FaultPlan, parse_plan
from protocols.messages import Message

_PARTS = 16  # of a search, so that no process is left with much more to do than the others
_WIDTH = 160


class Request(Message, frozen=True, kw_only=True):
    """What the command line asks for.

    Attributes:
        job: The job file.
        overrides: Laid over it.
        world: Options of the world that differ from the job's, by name.
        steps: Steps to simulate of each setting.
        sweep: Name of a field of the job, and its values; None: the job as it is.
        faults: ``all``, a plan, or empty for none.
        as_json: Print JSON.
    """

    job: str
    overrides: tuple[str, ...]
    world: dict[str, Any]
    steps: int
    sweep: tuple[str, tuple[str, ...]] | None
    faults: str
    as_json: bool

    def load(self, *more: str) -> RunConfig:
        """Read the job as it is simulated, with ``more`` laid over it.

        Raises:
            ConfigError: It is wrong; what is never opened is not looked at.
        """
        brought: frozenset[str] = getattr(resolve("backend", BACKEND), "BRINGS", frozenset[str]())
        given = {*brought, "prompts", "ledger", "trackers", "evaluation.prompts", "evaluation.reward"}
        cfg = load_config(self.job, overrides=[*self.overrides, *more], given=given)
        own = cfg.backend.options if cfg.backend.kind == BACKEND else {}
        slots = {"slots": cfg.engine.options["slots"]} if "slots" in cfg.engine.options else {}
        simulated = in_simulation(cfg, {**slots, **own, **self.world})
        if problems := find_problems(simulated, given=given):
            raise ConfigError(problems)
        return simulated

    @property
    def plan(self) -> FaultPlan | None:
        """The faults asked for; None: each run draws its own.

        Raises:
            ConfigError: They are none.
        """
        if self.faults == "all":
            return None
        try:
            return parse_plan(self.faults)
        except ValueError as exc:
            mend = "write 'all', or faults as docs/simulation.md shows them"
            raise ConfigError([Problem(field="--faults", value=repr(self.faults), why=str(exc), mend=mend)]) from exc


def simulate(request: Request) -> int:
    """Simulate each setting and print the table; returns the exit code."""
    _keep_quiet()
    if request.faults == "all":
        mend = "give --seeds N as well, or a plan"
        raise ConfigError([Problem(field="--faults", value="'all'", why="draws other faults each time", mend=mend)])
    plan = request.plan or FaultPlan()
    settings = [("synchronous", request.load("max_age=0"), FaultPlan())]
    settings += [(label, cfg, plan) for label, cfg in _settings(request)]
    with _processes() as processes:
        synchronous, *rows = processes.map(partial(_simulated, request.steps), settings)
    rows = [msgspec.structs.replace(one, speed_up=_ratio(one, synchronous)) for one in rows]
    _print_rows(request, rows)
    return 0 if all(one.failure is None for one in rows) else 3


def _simulated(steps: int, setting: tuple[str, RunConfig, FaultPlan]) -> Row:
    label, cfg, plan = setting
    cfg = msgspec.structs.replace(cfg, steps=steps_to_simulate(cfg, steps))
    return row(label, live(cfg, faults=plan))


def _ratio(one: Row, other: Row) -> float:
    return one.samples_per_s / other.samples_per_s if other.samples_per_s else 0.0


def _processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=_keep_quiet)


def _settings(request: Request) -> Iterator[tuple[str, RunConfig]]:
    if request.sweep is None:
        cfg = request.load()
        yield f"max_age {cfg.max_age:g}", cfg
        return
    name, values = request.sweep
    for value in values:
        yield f"{name} {value}", request.load(f"{name}={value}")


def _print_rows(request: Request, rows: Sequence[Row]) -> None:
    if request.as_json:
        click.echo(json.dumps([msgspec.to_builtins(one) for one in rows]))
        return
    cfg = request.load()
    world = ", ".join(f"{name} {value}" for name, value in cfg.backend.options.items())
    size = f"{cfg.batch_groups} groups of {cfg.group_size} samples a step, engines: {cfg.engines}"
    click.echo(f"{size}; {world or 'the world as it is by default'}")
    table = Table()
    for name in ("setting", "samples/s", "x sync", "of bound", "engines idle", "trainer idle"):
        table.add_column(name, justify="left" if name == "setting" else "right")
    for name in ("age mean", "p99", "max", "waste", "length"):
        table.add_column(name, justify="right")
    for one in rows:
        table.add_row(one.label, *(("-",) * 10 if one.failure else _cells(one)))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDTH, highlight=False).print(table)
    for one in rows:
        click.echo(f"{one.label}: {one.failure or one.limit}")


def _cells(one: Row) -> Iterator[str]:
    yield f"{one.samples_per_s:.4g}"
    yield f"{one.speed_up:.2f}"
    yield from (f"{share:.1%}" for share in (one.of_bound, one.engine_idle, one.trainer_idle))
    yield f"{one.age_mean:.2f}"
    yield from (f"{age:.0f}" for age in (one.age_p99, one.age_max))
    yield f"{one.waste:.1%}"
    yield f"{one.length_ratio:.3f}"


def search_faults(request: Request, seeds: int) -> int:
    """Search so many schedules, and print what was hit and what was found; returns the exit code."""
    _keep_quiet()
    job, plan = request.load(), request.plan
    parts = [range(first, seeds, _PARTS) for first in range(min(_PARTS, seeds))]
    findings = Findings(hits={}, endings={}, found=[])
    with _processes() as processes:
        for part in processes.map(partial(search, job, plan=plan), parts):
            findings.add(part)
    _print_findings(request, findings)
    return InvariantError.exit_code if findings.found else 0


def _print_findings(request: Request, findings: Findings) -> None:
    replays = [f"conductor simulate {request.job} --replay {one.seed} --faults '{one.plan}'" for one in findings.found]
    if request.as_json:
        untouched = [f"{kind}/{stage}" for kind, stage in findings.untouched()]
        click.echo(json.dumps({**msgspec.to_builtins(findings), "untouched": untouched, "replays": replays}))
        return
    table = Table(title="hits: fault x stage", title_justify="left")
    table.add_column("")
    for stage in STAGES:
        table.add_column(stage, justify="right")
    for kind in KINDS:
        table.add_row(kind, *(_hits(findings, kind, stage) for stage in STAGES))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDTH, highlight=False).print(table)
    if request.faults == "all":
        _print_reach(findings)
    ended = ", ".join(f"{count} {name}" for name, count in sorted(findings.endings.items()))
    click.echo(f"{findings.runs} runs: {findings.finished} finished{f', ended by {ended}' if ended else ''}")
    for one, replay in zip(findings.found, replays, strict=True):
        click.echo("\n".join([f"seed {one.seed} broke", *(f"  {line}" for line in one.broken), f"  {replay}"]))
    click.echo(f"{len(findings.found)} runs broke a law" if findings.found else "no run broke a law")


def _hits(findings: Findings, kind: Any, stage: str) -> str:
    count = findings.hits.get(f"{kind}/{stage}", 0)
    return "-" if not count and stage in IMPOSSIBLE[kind] else str(count)


def _print_reach(findings: Findings) -> None:
    """Say which cells of the table cannot be hit, and which were not."""
    why: dict[str, list[str]] = {}
    for kind in KINDS:
        for stage, reason in IMPOSSIBLE[kind].items():
            why.setdefault(reason, []).append(f"{kind}/{stage}")
    for reason, cells in why.items():
        click.echo(f"- {reason}: {', '.join(cells)}")
    if untouched := findings.untouched():
        click.echo(f"not reached: {', '.join(f'{kind}/{stage}' for kind, stage in untouched)}; more seeds may")


def replay(request: Request, seed: int) -> int:
    """Run one schedule of the search again and print all that happened; returns the exit code."""
    _keep_quiet()
    schedule = draw(request.load(), seed, request.plan)
    life = run_schedule(schedule, trace=True)
    cfg = schedule.cfg
    shape = (
        f"{cfg.steps} steps of {cfg.batch_groups} x {cfg.group_size}, max_age {cfg.max_age:g}, engines: {cfg.engines}"
    )
    click.echo(f"seed {seed}: {shape}; {json.dumps(cfg.backend.options)}")
    click.echo(f"faults: {schedule.plan or 'none'}")
    click.echo("\n".join(life.observed.trace or ()))
    error = life.error
    ended = "finished" if error is None else "\n".join([f"{type(error).__name__}: {error}", *_notes(error)])
    click.echo(f"{life.seconds:12.6f}  {ended}")
    lines = broken(life, schedule.plan)
    click.echo("\n".join(lines or ("no law is broken",)))
    return InvariantError.exit_code if lines else 0


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def _keep_quiet() -> None:
    """Let adapters log nothing: in a simulation things go wrong on purpose."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

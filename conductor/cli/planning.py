"""``conductor plan``: where the workers of a job would run, as a table and as a file to edit."""

import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import click
import msgspec
from rich.console import Console
from rich.table import Table

from conductor.bootstrap import open_backend
from conductor.config import RunConfig
from conductor.core.planning.plan import plan
from conductor.fleet.planned import plan_bytes
from conductor.jobfile import as_in_file
from conductor.loading import load_fields
from conductor.validation import site_of
from protocols.aio import deadline
from protocols.backend import Inventory
from protocols.errors import ConfigError, UserError
from protocols.fleet import Plan

_PLAIN_WIDTH = 120


def plan_job(job: str, overrides: tuple[str, ...], *, output: str | None, as_json: bool) -> int:
    """Print the plan of a job, and write it where asked; returns the exit code.

    Raises:
        ConfigError: There is none; it holds every problem of the job and of its place.
    """
    fleet = _find_plan(job, overrides)
    if output is not None:
        try:
            Path(output).write_bytes(plan_bytes(fleet))
        except OSError as exc:
            raise UserError(f"{output} cannot be written: {exc}; name another file with -o") from exc
    if as_json:
        click.echo(msgspec.json.encode(as_in_file(fleet)))
        return 0
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)
    console.print(_table(fleet))
    for line in _lines(fleet):
        click.echo(line)
    return 0


def _find_plan(job: str, overrides: tuple[str, ...]) -> Plan:
    fields, problems = load_fields(job, overrides=overrides)
    whole = fields.keys() == set(RunConfig.__struct_fields__)
    if whole and not any(problem.field.startswith("backend") for problem in problems):
        cfg = RunConfig(**fields)
        found = plan(cfg, anyio.run(_take_inventory, cfg))
        if isinstance(found, Plan) and not problems:
            return found
        if not isinstance(found, Plan):
            problems += (problem for problem in found if problem not in problems)
    raise ConfigError(problems)


async def _take_inventory(cfg: RunConfig) -> Inventory:
    """Ask the job's backend what there is; nothing is reserved, launched or written."""
    site = msgspec.structs.replace(site_of(cfg), run_dir=None)
    with deadline("Placement.inventory", cfg.deadlines.start):
        async with open_backend(cfg.backend, site) as backend:
            return await backend.placement.inventory()
    raise AssertionError  # the deadline raises


def _table(fleet: Plan) -> Table:
    table = Table(title=f"{len(fleet.vertices)} workers", title_justify="left")
    for name in ("worker", "runs", "node", "device", "CPUs", "bundle"):
        table.add_column(name, overflow="fold")
    for name in ("world", "role", "node", "local"):
        table.add_column(f"{name}\nrank", justify="right")
    for vertex in fleet.vertices:
        ranks = vertex.ranks
        table.add_row(
            vertex.name,
            f"{vertex.section} {vertex.adapter.kind}",
            vertex.node,
            " ".join([vertex.device, *([numbers(vertex.devices)] if vertex.devices else [])]),
            numbers(vertex.cpus) or "any",
            vertex.bundle,
            *map(str, (ranks.world, ranks.role, ranks.node, ranks.local)),
        )
    return table


def _lines(fleet: Plan) -> Iterator[str]:
    callers = dict.fromkeys(edge.caller for edge in fleet.edges)
    for caller in callers:
        callees = ", ".join(edge.callee for edge in fleet.edges if edge.caller == caller)
        yield f"{caller} calls {callees}"
    kept = numbers(fleet.controller_cpus)
    yield f"the controller keeps CPU {kept} of {fleet.controller_node}" if kept else "the controller keeps no CPU"


def numbers(found: tuple[int, ...]) -> str:
    """Return numbers with runs of them drawn together: ``0-3,6``."""
    runs: list[list[int]] = []
    for number in sorted(found):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

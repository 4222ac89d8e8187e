"""How much of what is possible does a policy reach, and at what price?

The real controller, pool and groups run under the virtual clock (``backends/sim``) in 27 worlds: 128 samples a step
(16 groups of 8) whose lengths are log-normal with sigma 0.5, 1 or 1.5; 32, 64 or 128 slots on one engine; a train step
of 0.5, 1 or 2 times the mean generation of a batch. Beside the controller's columns stand two that nobody measured:

- ``loop``: the plain synchronous loop, generate, train, publish, computed from the lengths of its batches;
- ``bound``: what no controller beats, the larger of the work in a batch over the slots and the train step (ORACLES).

A cell is the share of the bound, then waste and length ratio where they are not 0 and 1. A policy is one more entry of
``COLUMNS``; what the controller does not have yet is not there.

    python -m benchmarks.bench_pipeline [--steps 60] [--processes N] [--only SIGMA]

``real_time_error``: the same job on a real clock, 20 ms for a second, against the virtual one; the larger error of two
jobs. What else runs on the machine can only make a run slower, so the quickest of three counts.
"""

import argparse
import itertools
import json
import logging
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import msgspec
import structlog
from rich.console import Console
from rich.table import Table

from backends.sim import Config
from conductor.config import RunConfig
from conductor.simulation import bounds
from conductor.simulation.laws import ages
from conductor.simulation.life import Life, conduct, in_simulation, live
from conductor.simulation.report import Row, measure, row
from protocols.inference import Sampling

GROUPS, GROUP = 16, 8
REAL_RUNS = 3
SIGMAS, SLOTS, TRAINS = (0.5, 1.0, 1.5), (32, 64, 128), (0.5, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class World:
    """What the controller finds. ``train`` is in units of the mean generation of a batch."""

    sigma: float
    slots: int
    train: float

    @property
    def options(self) -> dict[str, Any]:
        """Options of the simulated backend."""
        generation_s = GROUPS * GROUP / self.slots
        return {"sample": f"lognormal:{self.sigma}", "slots": self.slots, "train": f"{self.train * generation_s}"}

    def __str__(self) -> str:
        return f"sigma {self.sigma:g}, {self.slots:3} slots, train {self.train:g}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A policy and its settings.

    Attributes:
        name: In the table.
        fields: Of the job.
        strict: The age that it promises; None: it promises none.
    """

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    strict: int | None = None


AGES = (1, 2, 4, 8)
COLUMNS = (
    Column(name="max_age 0", fields={"max_age": 0}, strict=0),
    Column(name="over-sampled", fields={"max_age": 0, "oversample": 1.5}, strict=0),
    *(Column(name=f"loose {age}", fields={"max_age": age, "staleness": "loose"}) for age in AGES),
    *(
        Column(name=f"{policy} {age}", fields={"max_age": age, "staleness": policy}, strict=age)
        for policy in ("wait", "drop", "partial")
        for age in AGES
    ),
)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What one column came to in one world; the loop beside it is the world's, so the first column alone has it."""

    row: Row
    violations: int
    loop_of_bound: float | None


def job(world: World, column: Column, steps: int) -> RunConfig:
    """Return the job of one cell."""
    cfg = RunConfig(
        steps=steps, batch_groups=GROUPS, group_size=GROUP, sampling=Sampling(max_tokens=1), **column.fields
    )
    return in_simulation(cfg, world.options)


def simulate(steps: int, cell: tuple[World, Column]) -> Cell:
    """Simulate one cell."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    world, column = cell
    life = live(job(world, column, steps))
    if life.error is not None:
        raise life.error
    violations = 0 if column.strict is None else sum(age > column.strict for age in ages(life))
    loop = loop_of_bound(world, life) if column.name == COLUMNS[0].name else None
    return Cell(row=row(column.name, life), violations=violations, loop_of_bound=loop)


def loop_of_bound(world: World, life: Life) -> float:
    """Return the share of the bound that the plain loop reaches, from the lengths of its batches."""
    train_s = float(world.options["train"])
    loop_s, ideal_s = 0.0, 0.0
    for step in range(life.cfg.steps):
        positions = range(GROUPS * step, GROUPS * (step + 1))
        work_s = [life.work_s(position, sample) for position in positions for sample in range(GROUP)]
        loop_s += bounds.synchronous(work_s, slots=world.slots, train_s=train_s, publish_s=0.0)
        ideal_s += bounds.ideal(work_s, slots=world.slots, train_s=train_s, publish_s=0.0)
    return ideal_s / loop_s


def shown(cell: Cell) -> str:
    """Return a cell as text."""
    price = ""
    if cell.row.waste > 0.001 or abs(cell.row.length_ratio - 1.0) > 0.001:
        price = f" w{cell.row.waste:.0%} l{cell.row.length_ratio:.2f}"
    return f"{cell.row.of_bound:.1%}{price}"


def real_step_s(cfg: RunConfig, options: dict[str, Any]) -> float:
    """Return the seconds of a step on a real clock, in the quickest of a few runs."""
    found: list[float] = []
    for _ in range(REAL_RUNS):
        twin = Life(cfg=cfg)
        anyio.run(conduct, twin, msgspec.convert(options, Config), False)
        window = measure(twin)
        assert window is not None
        found.append(window.step_s)
    return min(found)


def real_time_error() -> float:
    """Return by how much a run on a real clock is slower or faster than its virtual twin, the worse of two."""
    unit_s = 0.02
    options = {"sample": f"lognormal:0.5:{unit_s}", "slots": 8, "train": f"{2 * unit_s}"}
    errors: list[float] = []
    for max_age in (0, 4):
        cfg = RunConfig(steps=40, batch_groups=4, group_size=4, max_age=max_age, sampling=Sampling(max_tokens=1))
        cfg = in_simulation(cfg, options)
        virtual = measure(live(cfg))
        assert virtual is not None
        errors.append(abs(real_step_s(cfg, options) / virtual.step_s - 1.0))
    return max(errors)


def print_tables(worlds: Sequence[World], cells: dict[tuple[World, str], Cell]) -> None:
    """Print the share of the bound of every cell, a table for each policy, and the ages of every column."""
    console = Console(width=150)
    for policy, columns in itertools.groupby(COLUMNS, lambda column: column.fields.get("staleness", "synchronous")):
        names = [column.name for column in columns]
        table = Table("world", "loop", *names, title=f"share of the bound: {policy}", title_justify="left")
        for world in worlds:
            found = [cells[world, name] for name in names]
            table.add_row(str(world), f"{cells[world, COLUMNS[0].name].loop_of_bound:.1%}", *map(shown, found))
        console.print(table)
    ages_of = Table("age over all worlds", "mean", "99 %", "oldest")
    for column in COLUMNS:
        rows = [cells[world, column.name].row for world in worlds]
        values = ([one.age_mean for one in rows], [one.age_p99 for one in rows], [one.age_max for one in rows])
        ages_of.add_row(column.name, *(f"{statistics.fmean(one):.2f}, at most {max(one):g}" for one in values))
    console.print(ages_of)


def main() -> None:
    """Simulate all cells and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=float, help="one sigma")
    options = parser.parse_args()
    sigmas = SIGMAS if options.only is None else (options.only,)
    worlds = [World(sigma=a, slots=b, train=c) for a, b, c in itertools.product(sigmas, SLOTS, TRAINS)]
    asked = [(world, column) for world in worlds for column in COLUMNS]
    with ProcessPoolExecutor(options.processes) as processes:
        found = list(processes.map(partial(simulate, options.steps), asked))
    cells = {(world, column.name): cell for (world, column), cell in zip(asked, found, strict=True)}
    print_tables(worlds, cells)
    strict = [column.name for column in COLUMNS if column.strict == 4]
    print(
        json.dumps(
            {
                "worst_of_bound_at_4": worst(worlds, cells, strict),
                "worst_of_bound_at_4_loose": worst(worlds, cells, ["loose 4"]),
                "age_violations": sum(cell.violations for cell in found),
                "real_time_error": round(real_time_error(), 4),
            }
        )
    )


def worst(worlds: Sequence[World], cells: dict[tuple[World, str], Cell], names: Sequence[str]) -> float | None:
    """Return the worst world's best of some columns that keep the length ratio; None without such columns."""
    best = [
        max((one.row.of_bound for name in names if (one := cells[world, name]).row.length_ratio >= 0.95), default=0.0)
        for world in worlds
    ]
    return round(min(best), 3) if names else None


if __name__ == "__main__":
    main()

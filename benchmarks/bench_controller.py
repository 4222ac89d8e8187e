"""What does the controller itself cost, beside the least that asyncio asks for the same hops?

A group of 8 goes through the whole controller over ports that take no time, in turns with

- ``skeleton``: bare anyio, the same hops: six bounded streams, one task a group, one deadline around one call.
  No table, no record, no messages, no failure is told from another: nobody can have less.

All times are processor time of this process, and the garbage collector is set on both sides as runs set it by default.
What else runs on the machine still counts a little, through the caches and the clock of the processor: so the sides
take turns in short blocks, each ratio is taken within one round, and figures are medians of the rounds.

    python -m benchmarks.bench_controller [--rounds 21] [--groups 1000] [--profile]

``growth_10_to_10000``: cost of a group with 10,000 engines over that with 10, where each engine gets a group a step,
between the first step and the last: to open so many engines is no cost of a group.
``rss_growth_mb``: how much more memory a run holds after a million groups, at the pace of the median of six windows
of 10,000 groups. They begin when the 10,000 steps that a run remembers are all there, in steps of 10 groups; with a
ledger that keeps nothing and with one on the disk.
"""

import argparse
import cProfile
import gc
import itertools
import json
import pstats
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from rich.console import Console
from rich.table import Table

from backends.engines.pool import open_pool
from backends.inproc import Config
from backends.inproc import open as open_inproc
from backends.ledgers import sqlite
from backends.ledgers.memory import MemoryLedger
from benchmarks._instant import (
    GROUP,
    ForgetfulLedger,
    InstantExecutor,
    InstantGrader,
    InstantPayloads,
    InstantPrompts,
    InstantTrainer,
    instant_engines,
)
from conductor import Conductor, RunConfig, Workloads
from conductor.collector import seldom_collected
from conductor.config import CheckpointConfig
from conductor.observe.observer import Observer, Unwatched
from conductor.past import HISTORY
from conductor.result import Accounts
from protocols.adapters import Host
from protocols.backend import Backend
from protocols.inference import Sampling
from protocols.ledger import LedgerPort
from protocols.sections import Site
from protocols.tracking import StepRecord

BATCH = 50
BOUND = 2 * BATCH
SMALL = 10
"""Groups of a step where it is steps that fill the memory."""
WINDOWS = 6
WINDOW_STEPS = 1_000
OpenLedger = Callable[[], AbstractAsyncContextManager[LedgerPort]]
Send = MemoryObjectSendStream[int]
Receive = MemoryObjectReceiveStream[int]


async def skeleton(groups: int) -> None:
    """Send so many groups through six bounded streams, each in a task of its own for one call with a deadline."""
    with seldom_collected(wanted=True):
        await hops(groups)


async def hops(groups: int) -> None:
    """Do it, whatever the garbage collector does."""
    ends = [anyio.create_memory_object_stream[int](BOUND) for _ in range(6)]

    async def play(group: int, out: Send) -> None:
        with anyio.fail_after(600):
            await checkpoint()
        await out.send(group)

    async def rollout(source: Receive, out: Send) -> None:
        async with source, out, anyio.create_task_group() as tasks:
            async for group in source:
                tasks.start_soon(play, group, out)

    async def hop(source: Receive, out: Send) -> None:
        async with source, out:
            async for group in source:
                await out.send(group)

    async def admit(out: Send) -> None:
        async with out:
            for group in range(groups):
                await out.send(group)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(admit, ends[0][0])
        tasks.start_soon(rollout, ends[0][1], ends[1][0])
        for before, after in itertools.pairwise(ends[1:]):
            tasks.start_soon(hop, before[1], after[0])
        async with ends[5][1] as last:
            assert sum([1 async for _ in last]) == groups


class Watch(Unwatched):
    """Looks at the process after some steps.

    Args:
        steps: After these.
        look: Returns what there is to see.

    Attributes:
        seen: What there was.
    """

    def __init__(self, steps: Iterable[int], look: Callable[[], float]) -> None:
        self._steps = frozenset(steps)
        self._look = look
        self.seen: list[float] = []

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Look, where it is time."""
        del accounts
        if record.step in self._steps:
            self.seen.append(self._look())


async def controller(
    groups: int,
    *,
    ledger: LedgerPort,
    count: int = 1,
    batch: int = BATCH,
    observer: Observer | None = None,
) -> None:
    """Conduct so many groups."""
    async with open_pool(instant_engines(count)) as pool:
        executor = InstantExecutor(pool)
        cfg = RunConfig(
            steps=groups // batch,
            batch_groups=batch,
            group_size=GROUP,
            max_age=1,
            sampling=Sampling(max_tokens=4),
            lag_interval_s=0.0,
            trackers=(),
            checkpoint=CheckpointConfig(every=0),
        )
        workloads = Workloads(
            prompts=InstantPrompts(),
            executor=executor,
            inference=pool,
            grader=InstantGrader(),
            trainer=InstantTrainer(executor),
            ledger=ledger,
            trackers=(),
        )
        async with open_inproc(Config(), Site(job_dir=".")) as home:
            backend = Backend(placement=home.placement, launcher=home.launcher, payloads=InstantPayloads())
            result = await Conductor.run(cfg, backend=backend, workloads=workloads, observer=observer)
        assert result.accounts.committed == groups // batch * batch


@asynccontextmanager
async def open_sqlite() -> AsyncGenerator[LedgerPort]:
    """Open a record in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(job_dir=folder, run_dir=folder)
        async with sqlite.open(sqlite.Config(), Host(site=site, payloads=InstantPayloads())) as ledger:
            yield ledger


async def over_sqlite(groups: int) -> None:
    """Conduct so many groups with a record on the disk."""
    async with open_sqlite() as ledger:
        await controller(groups, ledger=ledger)


def cost_us(run: Callable[[int], Awaitable[None]], groups: int) -> float:
    """Return the processor time of one group, in microseconds."""
    gc.collect()
    began = time.process_time()
    anyio.run(run, groups)
    return (time.process_time() - began) / groups * 1e6


def held_mb() -> float:
    """Return the memory that the process holds, without its garbage."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def steady_us(engines: int, groups: int) -> float:
    """Return the processor time of a group in microseconds, in steps of as many groups as there are engines."""
    steps = groups // engines + 1
    watch = Watch((1, steps), time.process_time)

    async def run() -> None:
        await controller(steps * engines, ledger=MemoryLedger(), count=engines, batch=engines, observer=watch)

    gc.collect()
    anyio.run(run)
    began, ended = watch.seen
    return (ended - began) / ((steps - 1) * engines) * 1e6


def growth(rounds: int) -> list[tuple[float, float]]:
    """Return the cost of a group with 10 engines and with 10,000, in microseconds, once a round."""
    return [(steady_us(10, 10_000), steady_us(10_000, 30_000)) for _ in range(rounds)]


def memory_growth_mb(open_ledger: OpenLedger) -> float:
    """Return how much more memory a run would hold after a million groups, at the pace of the median window."""
    marks = range(HISTORY + 1_000, HISTORY + 1_000 + WINDOWS * WINDOW_STEPS + 1, WINDOW_STEPS)
    watch = Watch(marks, held_mb)

    async def run() -> None:
        async with open_ledger() as ledger:
            await controller(marks[-1] * SMALL, ledger=ledger, batch=SMALL, observer=watch)

    anyio.run(run)
    grown = statistics.median(after - before for before, after in itertools.pairwise(watch.seen))
    return grown * 1_000_000 / (WINDOW_STEPS * SMALL)


def profile(groups: int) -> None:
    """Print where the time of a group goes."""
    profiler = cProfile.Profile()
    profiler.runcall(anyio.run, lambda: controller(groups, ledger=MemoryLedger()))
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


async def in_memory(groups: int) -> None:
    """Conduct so many groups with a record in memory."""
    await controller(groups, ledger=MemoryLedger())


SIDES: dict[str, Callable[[int], Awaitable[None]]] = {
    "skeleton": skeleton,
    "controller, memory ledger": in_memory,
    "controller, sqlite ledger": over_sqlite,
}


def compare(rounds: int, groups: int) -> list[dict[str, float]]:
    """Return what a group costs on each side, in microseconds, once a round."""
    for run in SIDES.values():
        cost_us(run, 500)
    return [{name: cost_us(run, groups) for name, run in SIDES.items()} for _ in range(rounds)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if options.profile:
        profile(options.groups)
        return
    rounds = compare(options.rounds, options.groups)
    cost = {name: statistics.median(one[name] for one in rounds) for name in SIDES}
    ratio = {name: statistics.median(one[name] / one["skeleton"] for one in rounds) for name in SIDES}
    pairs = growth(3)
    few, many = (statistics.median(side) for side in zip(*pairs, strict=True))
    memory = {"nothing kept": lambda: nullcontext(ForgetfulLedger()), "sqlite": open_sqlite}
    grown = {name: memory_growth_mb(open_ledger) for name, open_ledger in memory.items()}
    table = Table("", "us a group, p50", "x skeleton, p50", "MB more a million groups")
    for name in SIDES:
        table.add_row(
            f"{name}, {options.rounds} x {options.groups:,} groups", f"{cost[name]:.0f}", f"{ratio[name]:.2f}"
        )
    table.add_row("10 engines, 3 x 10,000 groups", f"{few:.0f}")
    table.add_row("10,000 engines, 3 x 30,000 groups", f"{many:.0f}")
    for name, mb in grown.items():
        table.add_row(f"ledger: {name}, {WINDOWS} x {WINDOW_STEPS * SMALL:,} groups", "", "", f"{mb:.1f}")
    Console(width=100).print(table)
    verdict = {
        "vs_skeleton": round(ratio["controller, memory ledger"], 2),
        "vs_skeleton_sqlite": round(ratio["controller, sqlite ledger"], 2),
        "us_per_group_p50": round(cost["controller, memory ledger"], 1),
        "growth_10_to_10000": round(statistics.median(b / a for a, b in pairs), 2),
        "rss_growth_mb": round(grown["nothing kept"], 1),
        "rss_growth_mb_sqlite": round(grown["sqlite"], 1),
    }
    print(json.dumps(verdict))


if __name__ == "__main__":
    main()

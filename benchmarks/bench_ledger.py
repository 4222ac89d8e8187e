"""What does a durable ledger cost, and how soon is it read again?

- ``vs_executemany``: events a second that 64 tasks append, 16 at a time, beside ``executemany`` of the plain
  ``sqlite3`` module with as many events a transaction, encoded beforehand, one a row, on one thread and
  without an event loop. ``vs_executemany_single``: the same, one event at a time.
- ``slowdown``: how much more work a train step of the main job is with the SQLite ledger than with the one in memory:
  the median over rounds of the ratio of the processor time of their median steps, all threads together, less 1. Beside
  it in the table, the same of the time on the clock, which other programs disturb more.
- ``resume_s``: opening a record, reading it, and rebuilding the lease table from it, as a resume does.
- ``bytes_per_event``: of that record's file.

The two sides of a ratio take turns in one process. The record is that of groups of 4 samples, 16 groups a step,
and a checkpoint every 10 steps; it was appended 16 events at a time.

    python -m benchmarks.bench_ledger [--quick]
"""

import argparse
import json
import resource
import sqlite3
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import anyio
import msgspec
import transformers
from rich.console import Console
from rich.table import Table

from backends.inproc.payloads import InprocPayloads
from backends.ledgers import sqlite
from benchmarks.bench_main_job import SHAPES, job
from conductor import Conductor
from conductor.past import read_past
from conductor.result import Accounts
from protocols.adapters import Host
from protocols.grading import Grade
from protocols.inference import Segment
from protocols.ledger import (
    Admitted,
    Checkpointed,
    Claimed,
    Committed,
    Generating,
    Graded,
    LedgerEvent,
    RunStarted,
    Stepped,
)
from protocols.messages import DispatchId, LeaseId, PayloadRef, WeightVersion
from protocols.prompts import Prompt, SourceState, TextPrompt
from protocols.rollouts import GroupReceipt, SampleReceipt
from protocols.sections import Section, Site
from protocols.tracking import StepRecord

APPENDERS = 64
SHAPE = "small"
BATCH = 16
SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured: rounds, events of a round and of the record, and steps of a job."""

    rounds: int
    batched: int
    single: int
    recorded: int
    job_rounds: int
    steps: int


FULL = Effort(rounds=5, batched=100 * 1024, single=250 * 64, recorded=1_000_000, job_rounds=11, steps=20)
QUICK = Effort(rounds=3, batched=8 * 1024, single=50 * 64, recorded=20_000, job_rounds=1, steps=3)


def record_of_a_run() -> Iterator[LedgerEvent]:
    """Give the events of a run that never ends: groups in flight together, batch by batch."""
    start = SourceState(position=0, seed=0)
    yield RunStarted(run_id="bench", job={}, version=WeightVersion(0), prompts=start, fingerprint="")
    version = 0
    while True:
        leases = tuple(LeaseId(f"L{version * BATCH + index}") for index in range(BATCH))
        dispatch = DispatchId(f"D{version}")
        for index, lease in enumerate(leases):
            content = TextPrompt(text=f"{index:07d}>")
            prompt = Prompt(position=version * BATCH + index, content=content, fields={"answer": str(index)})
            yield Admitted(lease_id=lease, prompt=prompt, group_size=SAMPLES)
        for lease in leases:
            yield Generating(lease_id=lease, attempt=0)
        for lease in leases:
            yield _graded(lease, WeightVersion(version))
        yield Claimed(dispatch_id=dispatch, version=WeightVersion(version), leases=leases)
        version += 1
        yield Committed(dispatch_id=dispatch, version=WeightVersion(version), leases=leases)
        yield Stepped(record=StepRecord(step=version, metrics={"loss": 0.5}), seconds=float(version))
        if version % 10 == 0:
            yield Checkpointed(version=WeightVersion(version), kept=(WeightVersion(version),))


def _graded(lease: LeaseId, version: WeightVersion) -> Graded:
    segments = (Segment(version=version, count=8),)
    sample = SampleReceipt(tokens=8, segments=segments, finish="stop", preview="76543210")
    payload = PayloadRef(owner=f"policy.1/{lease}/0/", key="group")
    receipt = GroupReceipt(lease_id=lease, attempt=0, prompt_tokens=8, payload=payload, samples=(sample,) * SAMPLES)
    grades = tuple(Grade(reward=index / SAMPLES) for index in range(SAMPLES))
    return Graded(lease_id=lease, receipt=receipt, grades=grades)


def measure_appends(count: int, each: int) -> float:
    """Append ``count`` events, ``each`` at a time, from 64 tasks; returns events a second."""
    events = tuple(islice(record_of_a_run(), count))
    appends = [events[first : first + each] for first in range(0, count, each)]

    async def append(ledger: sqlite.SqliteLedger, first: int) -> None:
        for one in appends[first::APPENDERS]:
            await ledger.append(one)

    async def main(folder: str) -> float:
        async with sqlite.open(sqlite.Config(), host(folder)) as ledger:
            began = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for first in range(APPENDERS):
                    tasks.start_soon(append, ledger, first)
            return count / (time.perf_counter() - began)

    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(main, folder)


def measure_executemany(count: int, each: int) -> float:
    """Insert as many events, ``64 x each`` a transaction; returns events a second."""
    bodies = [msgspec.msgpack.encode(event) for event in islice(record_of_a_run(), count)]
    rows = [(seq, zlib.crc32(body), body) for seq, body in enumerate(bodies)]
    size = APPENDERS * each
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(Path(folder) / "peer.sqlite", isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL) STRICT")
        began = time.perf_counter()
        for first in range(0, count, size):
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows[first : first + size])
            db.execute("COMMIT")
        speed = count / (time.perf_counter() - began)
        db.close()
    return speed


class Steps:
    """Watches a run: the processor time and the time on the clock when each step was closed."""

    def __init__(self) -> None:
        self.closed: list[tuple[float, float]] = []

    def phase(self, name: str) -> None:
        """Do nothing."""

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Look at the clocks."""
        del record, accounts
        self.closed.append((time.process_time(), time.perf_counter()))


def measure_step(kind: str, steps: int) -> tuple[float, float]:
    """Train the main job with a kind of ledger; returns the median processor and clock seconds of a step."""
    watch = Steps()
    with tempfile.TemporaryDirectory() as folder:
        SHAPES[SHAPE].save(folder)
        cfg = msgspec.structs.replace(job(SHAPE, folder), steps=steps, run_dir="run", ledger=Section(kind=kind))
        anyio.run(partial(Conductor.run, cfg, observer=watch))
    each = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(watch.closed)]
    processor, clock = zip(*each, strict=True)
    return statistics.median(processor), statistics.median(clock)


def compare_steps(effort: Effort, table: Table) -> float:
    """Measure a step of the main job with both ledgers, in turns; returns the ratio of their processor times."""
    pairs = [
        (measure_step("sqlite", effort.steps), measure_step("memory", effort.steps)) for _ in range(effort.job_rounds)
    ]
    ratios: list[float] = []
    for index, name in enumerate(("processor ms", "ms")):
        ours, peers = [ours[index] for ours, _ in pairs], [peer[index] for _, peer in pairs]
        ratios.append(statistics.median(one / other for one, other in zip(ours, peers, strict=True)))
        mine, theirs = statistics.median(ours), statistics.median(peers)
        peer = f"memory {theirs * 1e3:.1f}"
        table.add_row(f"step of the main job, {name}", f"{mine * 1e3:.1f}", peer, f"{ratios[-1]:.3f} x")
    return ratios[0]


@dataclass(frozen=True, kw_only=True)
class Resume:
    """What it costs to come from nothing to what a run goes on with.

    Attributes:
        clock_s, processor_s: Seconds on the clock, and of the processor.
        held_mib: How much more memory the process held at its fullest.
        bytes_per_event: Size of what was read.
    """

    clock_s: float
    processor_s: float
    held_mib: float
    bytes_per_event: float


def measure_resume(count: int) -> Resume:
    """Write a record of ``count`` events, then resume from it."""
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(_write_record, folder, count)
        size = (Path(folder) / "ledger.sqlite").stat().st_size
        return anyio.run(_resume, folder, size / count)


async def _write_record(folder: str, count: int) -> None:
    events = islice(record_of_a_run(), count)
    async with sqlite.open(sqlite.Config(), host(folder)) as ledger:
        while some := tuple(islice(events, BATCH)):
            await ledger.append(some)


async def _resume(folder: str, bytes_per_event: float) -> Resume:
    held, clock, processor = _peak_mib(), time.perf_counter(), time.process_time()
    async with sqlite.open(sqlite.Config(), host(folder, resume=True)) as ledger:
        past = await read_past(ledger)
    assert past is not None
    return Resume(
        clock_s=time.perf_counter() - clock,
        processor_s=time.process_time() - processor,
        held_mib=_peak_mib() - held,
        bytes_per_event=bytes_per_event,
    )


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def host(folder: str, *, resume: bool = False) -> Host:
    """Return what an adapter is told about a run in ``folder``."""
    return Host(site=Site(job_dir=folder, run_dir=folder, resume=resume), payloads=InprocPayloads())


def in_turns(rounds: int, ours: Callable[[], float], peer: Callable[[], float]) -> tuple[float, float, float]:
    """Measure both sides in turns; returns the median of each and of their ratio, ours over the peer's."""
    pairs = [(ours(), peer()) for _ in range(rounds)]
    mine, theirs = zip(*pairs, strict=True)
    return statistics.median(mine), statistics.median(theirs), statistics.median(one / other for one, other in pairs)


def main() -> None:
    """Measure, print a table for people and one line of JSON."""
    transformers.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description="What does a durable ledger cost, and how soon is it read again?")
    parser.add_argument("--quick", action="store_true", help="measure little: whether it works, not how fast")
    effort = QUICK if parser.parse_args().quick else FULL
    table = Table("", "SQLite ledger", "peer", "ratio")
    ratios: dict[str, float] = {}
    for name, each, count in (("vs_executemany", BATCH, effort.batched), ("vs_executemany_single", 1, effort.single)):
        mine, theirs, ratios[name] = in_turns(
            effort.rounds,
            lambda count=count, each=each: measure_appends(count, each),
            lambda count=count, each=each: measure_executemany(count, each),
        )
        table.add_row(f"64 x {each}, events/s", f"{mine:,.0f}", f"executemany {theirs:,.0f}", f"{ratios[name]:.2f} x")
    ratio = compare_steps(effort, table)
    resume = measure_resume(effort.recorded)
    more = f"processor {resume.processor_s:.2f}, memory +{resume.held_mib:.0f} MiB"
    table.add_row(f"resume from {effort.recorded:,} events, s", f"{resume.clock_s:.2f}", more, "")
    table.add_row("file, bytes an event", f"{resume.bytes_per_event:.0f}", "", "")
    Console().print(table)
    line = {
        **ratios,
        "slowdown": ratio - 1,
        "resume_s": resume.clock_s,
        "bytes_per_event": resume.bytes_per_event,
    }
    print(json.dumps({name: round(value, 3) for name, value in line.items()}))


if __name__ == "__main__":
    main()

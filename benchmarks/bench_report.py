"""How long does a report of a long run take, and how large is it? At most 10 s of CPU time and 15 MB.

A record is made up: 2,000 steps of 16 groups of 16 samples, with texts of 200 characters. Then it is reported.

    python -m benchmarks.bench_report
"""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from backends.ledgers import sqlite
from backends.sim.payloads import ScriptedPayloads
from conductor.jobfile import job_values, write_job
from conductor.loading import load_config, read_job
from conductor.review.page import chart_library, page
from conductor.review.report import report, report_on
from protocols.adapters import Host
from protocols.grading import Grade
from protocols.inference import Segment
from protocols.ledger import Admitted, Claimed, Committed, Generating, Graded, LedgerEvent, RunStarted, Stepped
from protocols.messages import DispatchId, LeaseId, PayloadRef, WeightVersion
from protocols.prompts import Prompt, SourceState, TextPrompt
from protocols.rollouts import GroupReceipt, SampleReceipt
from protocols.sections import Site
from protocols.tracking import StepRecord

STEPS, GROUPS, SAMPLES = 2000, 16, 16
ENGINES = 8
METRICS = 40
MOST_CPU_S, MOST_MB = 10.0, 15.0
JOB = Path(__file__).parents[1] / "examples" / "reverse" / "job.toml"


def group_events(step: int, lease: int, now_s: float, rng: random.Random) -> Iterator[LedgerEvent]:
    """Yield what the record says of one group."""
    lease_id, version = LeaseId(f"L{lease}"), WeightVersion(step - 1)
    content = TextPrompt(text="a problem of some length " * 8)
    yield Admitted(lease_id=lease_id, prompt=Prompt(position=lease, content=content), group_size=SAMPLES)
    yield Generating(lease_id=lease_id, attempt=0, version=version, at_s=now_s)
    segments = (Segment(version=version, count=100),)
    engine = f"rollout/{lease % ENGINES}"
    made = SampleReceipt(tokens=100, segments=segments, finish="stop", preview="x" * 200, engine=engine)
    payload = PayloadRef(owner=f"policy.1/{lease_id}/0/", key="group")
    receipt = GroupReceipt(lease_id=lease_id, attempt=0, prompt_tokens=40, payload=payload, samples=(made,) * SAMPLES)
    grades = tuple(Grade(reward=rng.random(), parts={"form": 1.0, "answer": rng.random()}) for _ in range(SAMPLES))
    finished_s = now_s + rng.uniform(0.1, 4.0)
    yield Graded(lease_id=lease_id, receipt=receipt, grades=grades, finished_at_s=finished_s, at_s=finished_s + 0.1)


def step_events(step: int, rng: random.Random) -> Iterator[LedgerEvent]:
    """Yield what the record says of one step, which takes 5 s."""
    now_s, first = 5.0 * (step - 1), GROUPS * (step - 1)
    for lease in range(first, first + GROUPS):
        yield from group_events(step, lease, now_s, rng)
    leases = tuple(LeaseId(f"L{lease}") for lease in range(first, first + GROUPS))
    dispatch_id = DispatchId(f"D{step - 1}")
    yield Claimed(dispatch_id=dispatch_id, version=WeightVersion(step - 1), leases=leases)
    yield Committed(dispatch_id=dispatch_id, version=WeightVersion(step), leases=leases)
    times = {"time/step_s": 5.0, "time/wait_s": 4.1, "time/train_s": 0.8, "reward/mean": rng.random()}
    metrics = times | {f"made/up_{number}": rng.random() for number in range(METRICS)}
    record = StepRecord(step=step, metrics=metrics)
    yield Stepped(record=record, seconds=now_s + 5.0, publishes=((now_s, now_s + 0.05),))


async def write(run_dir: Path) -> None:
    """Write the record of the run into its folder."""
    sizes = [f"steps={STEPS}", f"batch_groups={GROUPS}", f"group_size={SAMPLES}"]
    cfg = load_config(JOB, overrides=sizes, run_dir=str(run_dir))
    write_job(cfg, run_dir)
    rng, host = random.Random(1), Host(site=Site(job_dir="/", run_dir=str(run_dir)), payloads=ScriptedPayloads())
    start = SourceState(position=0, seed=1)
    async with sqlite.open(sqlite.Config(), host) as ledger:
        job = job_values(cfg)
        await ledger.append((RunStarted(run_id="r", job=job, version=WeightVersion(0), prompts=start, fingerprint=""),))
        for step in range(1, STEPS + 1):
            await ledger.append(tuple(step_events(step, rng)))


def main() -> int:
    """Print both figures beside their bounds; returns 1 where one is missed."""
    with TemporaryDirectory() as folder:
        run_dir = Path(folder)
        anyio.run(write, run_dir)
        began = time.process_time()
        text = page(report(report_on(read_job(str(run_dir)), live=False)), chart_library())
        cpu_s, size_mb = time.process_time() - began, len(text.encode()) / 1e6
    print(f"{STEPS} steps, {STEPS * GROUPS * SAMPLES} samples")
    print(f"CPU time {cpu_s:5.2f} s of at most {MOST_CPU_S:g} s")
    print(f"size     {size_mb:5.2f} MB of at most {MOST_MB:g} MB")
    return 0 if cpu_s <= MOST_CPU_S and size_mb <= MOST_MB else 1


if __name__ == "__main__":
    sys.exit(main())

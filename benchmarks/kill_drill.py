"""Does a run that is killed over and over end as one that is not?

A small job with a real model trains in processes of its own, each killed with SIGKILL: at every kind of ledger
event in turn (before it is written, while it is, after), during checkpoints, compaction and resume, and at random
moments. It is resumed until it ends; then the next run begins, until there were enough kills. Every second run keeps
the samples of finished groups (``checkpoint.durability = "groups"``). Each is compared with one that nobody killed.

    python -m benchmarks.kill_drill --kills 200 [--seed 0] [--keep FOLDER]

The last line is one JSON object; the exit code is 1 unless all of it is as it must be:

- ``lost``: admitted groups that ended nowhere, and events that had been written and were gone;
- ``twice``: groups that two steps which count were trained on;
- ``order_equal``: each step was trained on the same prompts in the same order;
- ``weights_equal``: model and optimizer are equal bit for bit, and the metrics of each step as well;
- ``reexecuted_max``: steps that one kill made the run take again. More than ``checkpoint.every`` is a failure; where a
  checkpoint was being written, while steps went on, more than twice that.

A life is forked from this process, which has the libraries loaded: it starts in milliseconds.
"""

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a deterministic engine needs it

from benchmarks._drill_job import ADMITTED, COMMITS, EVERY, RESTORED, RESUMES, STEPS, Death, Durability, job
from conductor.conductor import Conductor
from conductor.inspection import inspect, read_record
from protocols.ledger import LedgerEvent

KILLS_A_RUN = 12
LIFE_S = 60.0
_PATIENCE_S = 120.0
_COMPARED = ("reward/mean", "loss", "grad_norm", "groups/trained", "groups/filtered")

LEARNED = ("model.safetensors", "optimizer.safetensors")
"""Files of a checkpoint that two runs share bit for bit. ``random.safetensors`` is the process's: nobody seeds it."""


@dataclass
class Ended:
    """What a run came to.

    Attributes:
        weights: Digests of the files of its last checkpoint.
        metrics: Of each step, those that must be the same.
        order: The prompts of each step that counts.
    """

    weights: dict[str, str]
    metrics: list[Any]
    order: list[list[int]]
    accounts: dict[str, Any]


@dataclass
class Verdict:
    """What was found over all runs."""

    kills: int = 0
    runs: int = 0
    lost: int = 0
    twice: int = 0
    order_equal: bool = True
    weights_equal: bool = True
    reexecuted_max: int = 0
    too_many: int = 0
    restored: int = 0
    places: Counter[str] = field(default_factory=Counter)

    def right(self) -> bool:
        """Return whether all is as it must be."""
        return not (self.lost or self.twice or self.too_many) and self.order_equal and self.weights_equal


def deaths(rng: random.Random, life_s: float) -> Iterator[tuple[str, Death, float | None]]:
    """Yield, without end, where a life dies: a name, what it does itself, or after how many seconds it is killed."""
    tags = [str(kind.__struct_config__.tag) for kind in LedgerEvent.__args__]  # type: ignore[attr-defined]
    tags.remove("unclaimed")  # no step of this job changes nothing
    tags.remove("incident")  # its workers are in its own process
    tags[tags.index("compacted")] = "compact"
    while True:
        for tag in tags:
            for point in ("before", "during", "after"):
                often = 1 if tag in {"run_started", "resumed", "compact"} else rng.choice([1, 2, 3, 8])
                death = Death(at=tag, number=often, point=point, delay_s=rng.uniform(0.0, 0.003))
                yield f"{tag} {point}", death, None
            yield "any moment", Death(), rng.uniform(0.0, life_s)
            yield "resume", Death(), rng.uniform(0.0, life_s / 6)
            yield "finished groups", Death(at="graded", number=rng.choice([3, 4, 5])), None
            # past the event: the trainer writes, the files are brought to the disk, the folder is renamed
            saving = Death(at="stepped", number=EVERY, point="during", delay_s=rng.uniform(0.0, 0.05))
            yield "checkpoint", saving, None


def live(run_dir: Path, death: Death, kill_after_s: float | None, durability: Durability = "leases") -> bool:
    """Fork a life; returns whether it was killed.

    Raises:
        RuntimeError: It ended in an error of its own.
    """
    child = multiprocessing.get_context("fork").Process(target=_life, args=(run_dir, death, durability), daemon=True)
    child.start()
    child.join(_PATIENCE_S if kill_after_s is None else kill_after_s)
    if child.exitcode is None:
        if kill_after_s is None:
            child.kill()
            raise RuntimeError(f"a life hung for {_PATIENCE_S:g} s; see {run_dir}")
        child.kill()
        child.join()
    if child.exitcode not in {0, -signal.SIGKILL}:
        raise RuntimeError(f"a life failed:\n{(run_dir.parent / 'error.txt').read_text()}")
    return child.exitcode != 0


def _life(run_dir: Path, death: Death, durability: Durability) -> None:
    try:
        anyio.run(partial(Conductor.run, job(run_dir, death, durability), resume=True))
    except BaseException:  # noqa: ASYNC103, BLE001 - the process ends here, and its parent reads why
        (run_dir.parent / "error.txt").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def ended(run_dir: Path, verdict: Verdict) -> Ended:
    """Read what a run came to, and count what it lost or did twice."""
    record = read_record(job(run_dir, None))
    found = inspect(record)
    verdict.lost += sum(found.groups.open.values()) + found.lost + (0 if found.balanced else 1)
    order = _steps_that_count(run_dir)
    trained = Counter(position for step in order for position in step)
    verdict.twice += sum(times - 1 for times in trained.values())
    if (run_dir / RESUMES).exists():
        for committed, version, writing in _lines(run_dir / RESUMES):
            verdict.reexecuted_max = max(verdict.reexecuted_max, committed - version)
            verdict.too_many += committed - version > (2 * EVERY if writing else EVERY)
    if (run_dir / RESTORED).exists():
        verdict.restored += len(_lines(run_dir / RESTORED))
    folder = run_dir / "checkpoints" / f"step-{STEPS}"
    return Ended(
        weights={name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in LEARNED},
        metrics=[[line["step"], *map(line["metrics"].get, _COMPARED)] for line in _lines(run_dir / "metrics.jsonl")],
        order=order,
        accounts={"groups": msgspec.to_builtins(found.groups), "samples": msgspec.to_builtins(found.samples)},
    )


def _steps_that_count(run_dir: Path) -> list[list[int]]:
    """Return the prompts of each step, from what was noted beside the ledger."""
    positions = dict(_lines(run_dir / ADMITTED))
    steps: list[tuple[int, list[int]]] = []
    for version, leases in _lines(run_dir / COMMITS):
        steps = [step for step in steps if step[0] <= version]
        if leases is not None:
            steps.append((version, [positions[lease_id] for lease_id in leases]))
    return [prompts for _, prompts in steps]


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def drill(kills: int, seed: int, folder: Path) -> Verdict:
    """Kill, resume and compare until there were ``kills`` kills and the last run has ended."""
    reference, began = folder / "reference" / "run", time.perf_counter()
    reference.mkdir(parents=True)
    live(reference, Death(), None)
    life_s = time.perf_counter() - began
    verdict = Verdict()
    expected = ended(reference, verdict)
    print(f"an undisturbed run takes {life_s:.2f} s: {STEPS} steps, {expected.accounts['groups']}")
    planned = deaths(random.Random(seed), life_s)
    while verdict.kills < kills:
        verdict.runs += 1
        run_dir = folder / f"run-{verdict.runs}" / "run"
        run_dir.mkdir(parents=True)
        durability: Durability = "leases" if verdict.runs % 2 else "groups"
        _one_run(run_dir, durability, min(KILLS_A_RUN, kills - verdict.kills), planned, verdict)
        _compare(expected, ended(run_dir, verdict), run_dir, verdict)
        print(
            f"run {verdict.runs}: {verdict.kills} kills, {'as it must be' if verdict.right() else 'WRONG'}", flush=True
        )
    return verdict


def _one_run(
    run_dir: Path,
    durability: Durability,
    most: int,
    planned: Iterator[tuple[str, Death, float | None]],
    verdict: Verdict,
) -> None:
    """Kill one run up to ``most`` times, then let it end."""
    for _ in range(most):
        place, death, after_s = next(planned)
        if not live(run_dir, death, after_s, durability):
            return
        verdict.kills += 1
        verdict.places[place] += 1
    live(run_dir, Death(), None, durability)


def _compare(expected: Ended, found: Ended, run_dir: Path, verdict: Verdict) -> None:
    for name in ("weights", "metrics", "order", "accounts"):
        if getattr(found, name) != getattr(expected, name):
            print(f"{run_dir}: other {name}:\n  {getattr(found, name)}\n  {getattr(expected, name)}")
            if name == "order":
                verdict.order_equal = False
            elif name == "accounts":
                verdict.lost += 1
            else:
                verdict.weights_equal = False


def preload() -> None:
    """Load what every life needs, and nothing that starts a thread."""
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401, PLC0415 - heavy

    import backends.engines.torch.engine  # noqa: PLC0415
    import backends.episodes.single_turn  # noqa: PLC0415
    import backends.graders.function  # noqa: PLC0415
    import backends.inproc  # noqa: PLC0415
    import backends.models.scratch  # noqa: PLC0415
    import backends.prompts.function  # noqa: PLC0415
    import backends.trackers.jsonl  # noqa: PLC0415
    import backends.trainers.torch.trainer  # noqa: F401, PLC0415

    gc.collect()
    gc.freeze()


def main() -> None:
    """Drill, print how often each place was hit, and one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="write the runs there and keep them")
    args = parser.parse_args()
    preload()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as aside:
        verdict = drill(args.kills, args.seed, args.keep or Path(aside))
    for place, times in sorted(verdict.places.items()):
        print(f"{times:5}  {place}")
    seconds = time.perf_counter() - began
    print(f"{verdict.runs} runs, {verdict.kills} kills in {seconds:.0f} s; {verdict.restored} groups restored")
    names = ("kills", "lost", "twice", "order_equal", "weights_equal", "reexecuted_max")
    print(json.dumps({name: getattr(verdict, name) for name in names}))
    sys.exit(0 if verdict.right() else 1)


if __name__ == "__main__":
    main()

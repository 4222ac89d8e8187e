"""What does the backend on Ray cost beside Ray itself, and beside a run as one writes it by hand?

On a cluster of this machine, in turn and again and again, so that other load hits all alike; medians are compared:

- ``hop_vs_bare``: a call to a worker through ``LauncherPort.call`` over a call to a bare async actor that answers what
  it was given; in the table also with a deadline around it. Goals: 1.1 and 1.15.
- ``publish_vs_put``: one ``ray.put`` of 256 MiB and four ``ray.get``, over staging as much through ``PayloadPort`` and
  loading it into four engines that compute nothing. Goal: at least 0.8.
- ``vs_ray_actors_0``, ``vs_ray_actors_1``: samples per second of the demo with the controller, over those of
  ``benchmarks/_ray_peer.py``: the same engine, trainer and batch behind two actors, at ``max_age`` 0 and 1 (there the
  next batch is generated while one is trained).
- ``failover_s``: from the kill of a node, with a rank, an engine and the staged weights, to the next trained step,
  which comes after the first new rollout. Once: it takes a minute.

Beside these the table has the demo on the three backends: samples per second, and the processor time that the
controller's own process spends on a group (in process that is everything, so it is left out). And it has the demo with
a larger model beside the same by hand: what is sent costs as much there, and there is more between.

    python -m benchmarks.bench_ray [--rounds 3] [--only hop,publish,jobs,larger,failover]
"""

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch, and for every process of the cluster

import anyio
import ray
import structlog
from anyio.lowlevel import checkpoint

from backends import ray as backend
from backends.ray.session import open_session
from benchmarks._ray_bulk import SIZE_BYTES, STORE_BYTES, BareEngine, BareTrainer
from benchmarks._ray_cluster import RayCluster, open_cluster
from benchmarks._ray_peer import RolloutManager, TrainGroup
from benchmarks.ray_drill import DRILLS, JOB, Steps, drill
from conductor import Conductor, load_config
from conductor.config import RunConfig
from conductor.fleet.group import spec_of
from conductor.fleet.planned import read_plan
from conductor.result import Accounts
from conductor.validation import site_of
from protocols.backend import Backend, WorkloadSpec
from protocols.messages import WorkerId
from protocols.sections import Section, Site
from protocols.tracking import StepRecord
from protocols.training import StageRequest

CALLS, PUBLISHES = 300, 5  # in a round
_SETTLED_S = 1.2  # Ray gives back what nobody needs once a second
STEPS, UNCOUNTED = 10, 2
DEMO = (
    f"steps={STEPS}",
    "filter.equal_rewards=keep",
    "reward.cheap=true",
    "engine.threads=1",
    "train.threads=1",
    "checkpoint.every=0",
)
LARGER = (
    "steps=6",
    "model.config={ n_embd = 256, n_layer = 4, n_head = 4, n_positions = 32, tie_word_embeddings = false }",
)
TRAINER = WorkerId("train/0")
ENGINES = tuple(WorkerId(f"engine/{number}") for number in range(4))
Rows = dict[str, list[float]]


async def seconds_of(act: Callable[[], Awaitable[object]]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    await act()
    return time.perf_counter() - began


async def measure_hop(made: Backend, rounds: int) -> Rows:
    """Return the seconds of calls, of each kind."""
    await made.launcher.launch(_spec(ENGINES[0], "engine", "benchmarks._ray_bulk:ENGINE"))
    bare: Any = ray.remote(BareEngine).options(num_cpus=0).remote()

    async def with_deadline() -> None:
        with anyio.fail_after(60):
            await made.launcher.call(ENGINES[0], "status", ())

    async def bare_call() -> None:
        await bare.status.remote(b"x" * 64)

    acts = {"bare": bare_call, "port": lambda: made.launcher.call(ENGINES[0], "status", ()), "deadline": with_deadline}
    found = await _alternating(acts, rounds * CALLS)
    await made.launcher.kill(ENGINES[0])
    ray.kill(bare)
    return found


async def measure_publish(made: Backend, rounds: int) -> Rows:
    """Return the seconds of publishes, of each kind, in a store that has room and whose memory was touched before."""
    await made.launcher.launch(_spec(TRAINER, "train", "benchmarks._ray_bulk:TRAINER"))
    for name in ENGINES:
        await made.launcher.launch(_spec(name, "engine", "benchmarks._ray_bulk:ENGINE"))
    await anyio.sleep(_SETTLED_S)
    putter: Any = ray.remote(BareTrainer).options(num_cpus=0).remote()
    versions: list[str] = []
    getters: list[Any] = [ray.remote(BareEngine).options(num_cpus=0).remote() for _ in ENGINES]

    held: list[
        Any
    ] = []  # the last object, and with it the room of the one before: nobody waits for that to be given back

    async def bare() -> None:
        held[:] = await putter.put.remote()
        async with anyio.create_task_group() as tasks:
            for getter in getters:
                tasks.start_soon(_awaited, getter.get.remote(held))

    async def ports() -> None:
        versions.append(f"weights/{len(versions)}/")
        request = StageRequest(owner=versions[-1], exclusive=False)
        manifest = await made.launcher.call(TRAINER, "stage_weights", (request,))
        async with anyio.create_task_group() as tasks:
            for name in ENGINES:
                tasks.start_soon(made.launcher.call, name, "load_weights", (manifest,))

    async def settled() -> None:
        """Let go of the version before, as a run does behind a publish, until its room is there again."""
        for version in versions[-2:-1]:
            await made.payloads.release(version)
        await anyio.sleep(_SETTLED_S)

    found = await _alternating({"bare": bare, "port": ports}, rounds * PUBLISHES, settled)
    for name in (TRAINER, *ENGINES):
        await made.launcher.kill(name)
    for actor in (putter, *getters):
        ray.kill(actor)
    return found


async def _awaited(ref: Any) -> None:
    await ref


async def _alternating(
    acts: dict[str, Callable[[], Awaitable[object]]], rounds: int, between: Callable[[], Awaitable[object]] = checkpoint
) -> Rows:
    """Do each a few times for nothing, then all in turn, again and again, so that what else computes hits all alike."""
    for act in acts.values():
        for _ in range(UNCOUNTED):
            await act()
            await between()
    found: Rows = {name: [] for name in acts}
    gc.collect()
    for _ in range(rounds):
        for name, act in acts.items():
            await between()
            found[name].append(await seconds_of(act))
    return found


def _spec(worker: WorkerId, section: str, kind: str) -> WorkloadSpec:
    site = Site(job_dir=str(Path.cwd()))
    return WorkloadSpec(worker_id=worker, section=section, adapter=Section(kind=kind), site=site, reservation_id=worker)


def job(run_dir: Path, max_age: int, *overrides: str) -> RunConfig:
    """Return the demo, of which no group is replaced: a run by hand has no filter."""
    return load_config(JOB, overrides=[*DEMO, f"max_age={max_age}", *overrides], run_dir=str(run_dir))


class _Spent(Steps):
    """Notes the processor time of this process as well, at each step: to start a run takes more than its steps do."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: list[float] = []

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Note it."""
        super().stepped(record, accounts)
        self.spent.append(time.process_time())


async def conducted(cfg: RunConfig) -> tuple[float, float]:
    """Run a job; returns its samples per second, and the controller's processor time for a group, in seconds."""
    steps = _Spent()
    await Conductor.run(cfg, observer=steps)
    spent = steps.spent[-1] - steps.spent[UNCOUNTED]
    return _rate(cfg, steps.at), spent / ((len(steps.at) - 1 - UNCOUNTED) * cfg.batch_groups)


def _rate(cfg: RunConfig, at: list[float]) -> float:
    samples = (len(at) - 1 - UNCOUNTED) * cfg.batch_groups * cfg.group_size
    return samples / (at[-1] - at[UNCOUNTED])


async def by_hand(cfg: RunConfig, address: str) -> float:
    """Run the job without the controller, by the plan that a run with it has left; returns its samples per second."""
    plan = read_plan(Path(cfg.run_dir or "") / "plan.json")
    specs = {vertex.section: spec_of(vertex, site_of(cfg)) for vertex in plan.vertices}
    at: list[float] = []
    with open_session(backend.Config(address=address)):
        manager: Any = ray.remote(RolloutManager).options(num_cpus=0).remote(cfg, specs)
        group: Any = ray.remote(TrainGroup).options(num_cpus=0).remote(cfg, specs["train"])
        served = [manager.serve.remote(), group.serve.remote()]
        await manager.ready.remote()
        await group.ready.remote()
        await manager.load.remote(0, group.weights.remote())
        batch = manager.rollouts.remote()
        await _there(batch)  # a source of prompts has one caller at a time
        for step in range(cfg.steps):
            ahead = manager.rollouts.remote() if cfg.max_age and step + 1 < cfg.steps else None
            version = await group.step.remote(batch)
            if ahead is not None:
                await _there(ahead)
            await manager.load.remote(version, group.weights.remote())
            at.append(time.monotonic())
            batch = ahead if ahead is not None else manager.rollouts.remote()
        for actor in (manager, group):
            await actor.close.remote()
        for ref in served:
            await ref
    return _rate(cfg, at)


async def _there(ref: Any) -> None:
    """Wait until an object is there, without fetching it."""
    await anyio.to_thread.run_sync(partial(ray.wait, [ref], fetch_local=False))


def measure_jobs(
    cluster: RayCluster, rounds: int, folder: Path, *overrides: str, beside: tuple[str, ...] = ()
) -> tuple[Rows, Rows]:
    """Return samples per second and controller seconds for a group, of each kind and round.

    Args:
        cluster: Where it runs.
        rounds: How often.
        folder: Of the runs.
        overrides: Of the job.
        beside: Other backends that run it at ``max_age`` 1.
    """
    rates: Rows = {}
    spent: Rows = {}
    on_ray = ("backend.kind=ray", f"backend.address={cluster.address}", *overrides)
    for number in range(rounds):
        for max_age in (0, 1):
            cfg = job(folder / f"ray-{max_age}-{number}", max_age, *on_ray)
            jobs = {"ray": cfg}
            for kind in beside if max_age else ():
                jobs[kind] = job(folder / f"{kind}-{number}", max_age, f"backend.kind={kind}", *overrides)
            for kind, one in jobs.items():
                rate, group_s = anyio.run(conducted, one)
                rates.setdefault(f"{kind} {max_age}", []).append(rate)
                spent.setdefault(f"{kind} {max_age}", []).append(group_s)
            rates.setdefault(f"by hand {max_age}", []).append(anyio.run(by_hand, cfg, cluster.address))
    return rates, spent


async def _over(address: str, measure: Callable[[Backend, int], Awaitable[Rows]], rounds: int) -> Rows:
    async with backend.open(backend.Config(address=address), Site(job_dir="/")) as made:
        return await measure(made, rounds)


Row = tuple[str, str, str]
"""What was measured, what it came to, and what that is beside the peer."""

Found = tuple[list[Row], dict[str, float]]
"""Rows of the table, and numbers of the last line."""


def _hop(cluster: RayCluster, rounds: int, folder: Path) -> Found:
    del folder
    took = _medians(anyio.run(_over, cluster.address, measure_hop, rounds))
    ratios = {name: took[name] / took["bare"] for name in ("port", "deadline")}
    rows = [
        ("a call to a bare actor", f"{took['bare'] * 1e3:.3f} ms", ""),
        ("a call through the port", f"{took['port'] * 1e3:.3f} ms", f"{ratios['port']:.3f} x"),
        ("with a deadline", f"{took['deadline'] * 1e3:.3f} ms", f"{ratios['deadline']:.3f} x"),
    ]
    return rows, {"hop_vs_bare": ratios["port"]}


def _publish(cluster: RayCluster, rounds: int, folder: Path) -> Found:
    del folder
    took = _medians(anyio.run(_over, cluster.address, measure_publish, rounds))
    ratio = took["bare"] / took["port"]
    size = f"{SIZE_BYTES >> 20} MiB"
    rows = [
        (f"one put and 4 gets of {size}", f"{took['bare']:.3f} s", ""),
        (f"a publish of {size} to 4", f"{took['port']:.3f} s", f"{ratio:.3f} of it"),
    ]
    return rows, {"publish_vs_put": ratio}


def _jobs(cluster: RayCluster, rounds: int, folder: Path) -> Found:
    rates, spent = measure_jobs(cluster, rounds, folder, beside=("inproc", "processes"))
    found, group_s = _medians(rates), _medians(spent)
    costs = {kind: f"{cost * 1e3:.2f} ms a group" for kind, cost in group_s.items() if "inproc" not in kind}
    rows = [(f"the demo, {kind}", f"{rate:.0f} samples/s", costs.get(kind, "")) for kind, rate in found.items()]
    return rows, {f"vs_ray_actors_{age}": found[f"ray {age}"] / found[f"by hand {age}"] for age in (0, 1)}


def _larger(cluster: RayCluster, rounds: int, folder: Path) -> Found:
    rates, _ = measure_jobs(cluster, rounds, folder / "larger", *LARGER)
    found = _medians(rates)
    ratios = {f"ray {age}": f"{found[f'ray {age}'] / found[f'by hand {age}']:.3f} of it" for age in (0, 1)}
    return [
        (f"a larger model, {kind}", f"{rate:.0f} samples/s", ratios.get(kind, "")) for kind, rate in found.items()
    ], {}


def _failover(cluster: RayCluster, rounds: int, folder: Path) -> Found:
    del rounds
    outcome = anyio.run(drill, DRILLS["bundle"], cluster, folder / "drill")
    row = ("a node is lost", f"{outcome.still_s:.1f} s", f"the restart: {outcome.restart_s:.1f} s")
    return [row], {"failover_s": outcome.still_s}


PARTS = {"hop": _hop, "publish": _publish, "jobs": _jobs, "larger": _larger, "failover": _failover}


def main(rounds: int, only: set[str]) -> None:
    """Measure and print, each part as soon as it is there."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    last: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, open_cluster(nodes=1, cpus=4, store=STORE_BYTES) as cluster:
        for part in [part for part in PARTS if part in only]:
            rows, numbers = PARTS[part](cluster, rounds, Path(name))
            last |= numbers
            for what, took, beside in rows:
                print(f"{what:32}{took:>16}  {beside}", flush=True)
    print(json.dumps({key: round(value, 3) for key, value in last.items()}))


def _medians(rows: Rows) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in rows.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS))
    given = parser.parse_args()
    main(given.rounds, set(given.only.split(",")))

"""What does a run on Ray make of the loss of what it stands on?

A small job with two engines and two ranks, on two nodes of one machine, each worker in a process of its own. While it
trains, something is done to it; it must train on or end in a typed verdict, with balanced books, with no payload byte
fetched by the controller, and with nothing of it left on the cluster.

    python -m benchmarks.ray_drill [DRILL ...] [--keep FOLDER]

Each drill prints a line of a table: what it ended in, how long the restart took, how long no step was trained, how many
groups were begun anew. The last line is one JSON object; the exit code is 1 unless all of them end as they must.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import ray
from ray.util.placement_group import placement_group_table
from rich.console import Console
from rich.table import Table

from backends import ray as backend
from backends.ray.payloads import RayPayloads
from benchmarks._ray_cluster import Pool, RayCluster, open_cluster
from benchmarks._ray_driver import kill_and_resume
from conductor import Conductor, load_config
from conductor.config import RunConfig
from conductor.control.client import ask
from conductor.control.messages import Request
from conductor.fleet.planned import read_plan
from conductor.inspection import incidents, inspect, read_record
from conductor.loading import read_job
from conductor.observe.observer import Unwatched
from conductor.result import Accounts
from protocols.aio import Doorbell
from protocols.backend import Backend
from protocols.errors import ConductorError, ConfigError, PortFailed
from protocols.incidents import Incident
from protocols.ledger import Checkpointed, Readmitted, Stepped
from protocols.messages import WorkerId
from protocols.sections import Site
from protocols.tracking import StepRecord

ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples" / "reverse" / "job.toml"
LEAKY = ROOT / "benchmarks" / "_leaky_reward.py"
OVERRIDES = (
    "steps=1000000",
    "batch_groups=4",
    "group_size=4",
    "max_age=1",
    "sampling.max_tokens=4",
    "filter.equal_rewards=keep",
    "reward.cheap=true",
    "engine.threads=1",
    "train.threads=1",
    "engines=2",
    "fleet.roles.policy.instances=2",
    "fleet.roles.policy.placement=spread",
    "fleet.roles.rollout.placement=spread",
    'fleet.environment={OMP_NUM_THREADS="1"}',
)
ENGINES = (WorkerId("rollout/0"), WorkerId("rollout/1"))
RANKS = (WorkerId("policy/0"), WorkerId("policy/1"))
PATIENCE_S = 240.0
"""For a drill, from its first step on."""

NOTICE_S = 20.0
"""From the notice that a node goes until it does."""


class Steps(Unwatched):
    """Lets others wait for steps.

    Attributes:
        at: When each was trained, in seconds of ``time.monotonic``.
    """

    def __init__(self) -> None:
        self.at: list[float] = []
        self._bell = Doorbell()

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:  # noqa: ARG002 - the observer's
        """Note one."""
        self.at.append(time.monotonic())
        self._bell.ring()

    async def wait_for(self, more: int) -> None:
        """Wait for some more of them."""
        until = len(self.at) + more
        while len(self.at) < until:
            await self._bell.wait()


@dataclass
class Scene:
    """A job that trains.

    Attributes:
        began: When it was disturbed, in seconds of ``time.monotonic``; None: not yet.
    """

    cluster: RayCluster
    pool: Pool
    cfg: RunConfig
    made: Backend
    steps: Steps
    began: float | None = None

    async def pids(self) -> dict[WorkerId, int | None]:
        """Return the process of each worker that runs."""
        states = await self.made.launcher.poll()
        return {name: state.pid for name, state in states.items() if state.running}

    async def kill(self, *workers: WorkerId) -> None:
        """Kill processes, and see each worker restored."""
        pids = await self.pids()
        self.began = time.monotonic()
        for worker in workers:
            os.kill(pids[worker] or 0, signal.SIGKILL)
        await self.restored(*workers)

    async def kill_node_of(self, worker: WorkerId) -> None:
        """Kill the node that a worker was planned on, and see all of its workers restored."""
        node, workers = self._node_of(worker)
        self.began = time.monotonic()
        await anyio.to_thread.run_sync(self.pool.kill, node)
        await self.restored(*workers)

    async def take_node_of(self, worker: WorkerId) -> None:
        """Give notice of it, see its engines go and a checkpoint written, then kill it, and see the others restored."""
        node, workers = self._node_of(worker)
        self.began = time.monotonic()
        self.pool.drain(node, within_s=NOTICE_S)
        await self.restored(*(one for one in workers if one in ENGINES))
        if not any(isinstance(event, Checkpointed) for event in read_record(self.cfg).events):
            raise PortFailed("the notice led to no checkpoint")
        await anyio.sleep(self.began + NOTICE_S - time.monotonic())
        await anyio.to_thread.run_sync(self.pool.kill, node)
        await self.restored(*workers)
        if causes := {one.cause for one in self.incidents()} - {"preemption"}:
            raise PortFailed(f"it was taken for something else: {causes}")

    def _node_of(self, worker: WorkerId) -> tuple[str, list[WorkerId]]:
        """Return the node that a worker was planned on, and who else was."""
        plan = read_plan(Path(self.cfg.run_dir or "") / "plan.json")
        (node,) = [vertex.node for vertex in plan.vertices if vertex.name == worker]
        return node, [vertex.name for vertex in plan.vertices if vertex.node == node]

    async def restored(self, *workers: WorkerId) -> None:
        """Wait until the record tells of a failover of each, and of two more steps."""
        while not set(workers) <= {worker for one in self.incidents() for worker in one.workers}:
            await self.steps.wait_for(1)
        await self.steps.wait_for(2)

    def incidents(self) -> list[Incident]:
        """Return the failovers so far."""
        return [one for one in incidents(read_record(self.cfg)) if isinstance(one, Incident)]


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Drill:
    """One thing that is done to a job.

    Attributes:
        act: Does it, once two steps are trained, and returns when two more are that came after it.
        overrides: Of the job.
        cpus: Of each of its two nodes.
        verdict: The error that the run must end in; None: it must train on.
    """

    act: Act
    overrides: tuple[str, ...] = ()
    cpus: int = 2
    verdict: type[ConductorError] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a drill.

    Attributes:
        ended: ``trained``, or the name and text of the error.
        steps: That were trained.
        restart_s: Seconds of the longest failover; 0: there was none.
        still_s: Seconds from the disturbance to the next step.
        again: Groups that were begun anew.
        fetched: Payload bytes that the controller put or got.
        wrong: What is not as it must be.
    """

    ended: str
    steps: int = 0
    restart_s: float = 0.0
    still_s: float = 0.0
    again: int = 0
    fetched: int = 0
    wrong: tuple[str, ...] = ()


async def drill(one: Drill, cluster: RayCluster, run_dir: Path) -> Outcome:
    """Run the job on two nodes of its own in a cluster, disturb it, and tell what became of it."""
    overrides = [*OVERRIDES, *one.overrides]
    cfg = load_config(JOB, overrides=overrides, run_dir=str(run_dir))
    with cluster.pool(2, num_cpus=one.cpus) as pool:
        options = backend.Config(address=cluster.address, labels=pool.labels)
        async with backend.open(options, Site(job_dir="/")) as made:
            scene = Scene(cluster, pool, cfg, made, Steps())
            error = await _disturbed(one, scene)
            wrong = await _left(made)
            payloads = made.payloads
            assert isinstance(payloads, RayPayloads)
            fetched = payloads.bytes_got + payloads.bytes_put
    return _outcome(one, scene, error, fetched, wrong)


async def _disturbed(one: Drill, scene: Scene) -> Exception | None:
    """Run the job until the drill is over; returns what it ended in."""

    async def act(scope: anyio.CancelScope) -> None:
        await scene.steps.wait_for(2)
        with anyio.move_on_after(PATIENCE_S):
            await one.act(scene)
        scope.cancel()

    error: Exception | None = None
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(act, scope)
            try:
                await Conductor.run(scene.cfg, backend=scene.made, observer=scene.steps, control=True)
            except ConductorError as exc:
                error = exc
        tasks.cancel_scope.cancel()
    return error


async def _left(made: Backend) -> list[str]:
    """Return what is left on the cluster of a run that has ended."""
    workers = await made.launcher.poll()
    owners = await made.payloads.owners()
    groups = {group["state"] for group in placement_group_table().values()} - {"REMOVED"}
    return [f"{what} is left" for what in (*workers, *owners, *groups)]


def _outcome(one: Drill, scene: Scene, error: Exception | None, fetched: int, wrong: list[str]) -> Outcome:
    steps, began = scene.steps.at, scene.began
    after = [at for at in steps if began is not None and at > began]
    if error is None and len(after) < 2:
        wrong.append("it trained no further")
    if type(error) is not (one.verdict or type(None)):
        wrong.append(f"it ended in {error!r}")
    if fetched:
        wrong.append("payloads came to the controller")
    events = read_record(scene.cfg).events if steps else ()  # else it was refused before there was a record
    if any("it was ended" in event.detail for event in events if isinstance(event, Incident)):
        wrong.append("why a worker was lost is not told")
    if steps and not inspect(read_record(scene.cfg)).balanced:
        wrong.append("the books do not balance")
    return Outcome(
        ended="trained" if error is None else f"{type(error).__name__}: {error}",
        steps=len(steps),
        restart_s=max((event.seconds for event in events if isinstance(event, Incident)), default=0.0),
        still_s=after[0] - began if after and began is not None else 0.0,
        again=sum(isinstance(event, Readmitted) for event in events),
        fetched=fetched,
        wrong=tuple(wrong),
    )


async def _engine(scene: Scene) -> None:
    await scene.kill(ENGINES[1])


async def _rank(scene: Scene) -> None:
    await scene.kill(RANKS[0])


async def _engines(scene: Scene) -> None:
    await scene.kill(*ENGINES)


async def _node(scene: Scene) -> None:
    await scene.kill_node_of(RANKS[0])


async def _drain(scene: Scene) -> None:
    await scene.take_node_of(RANKS[0])


async def _full(scene: Scene) -> None:
    """Fill the object store of each node with what cannot be spilled, for as long as two steps take."""
    scene.began = time.monotonic()
    hoarders: list[Any] = [
        ray.remote(_Hoarder)
        .options(num_cpus=0, label_selector=scene.pool.labels, scheduling_strategy="SPREAD")
        .remote()
        for _ in range(2)
    ]
    held = [await hoarder.hoard.remote() for hoarder in hoarders]
    assert min(held) > 0
    await scene.steps.wait_for(3)
    for hoarder in hoarders:
        ray.kill(hoarder)


class _Hoarder:
    """Puts and maps objects until the store of its node has no room."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    async def hoard(self) -> int:
        """Return how many bytes it holds."""
        import numpy  # noqa: ICN001, PLC0415 - the node's

        piece = 4 << 20
        for _ in range(19):  # 76 of 80 MiB
            self._held.append(ray.get(ray.put(numpy.ones(piece, dtype=numpy.uint8))))  # noqa: ASYNC210
        return piece * len(self._held)


async def _leak(scene: Scene) -> None:
    scene.began = time.monotonic()
    await scene.steps.wait_for(4)
    faults = sum(
        event.failures.get("reward_cancelled", 0)
        for event in read_record(scene.cfg).events
        if isinstance(event, Stepped)
    )
    if not faults:
        raise PortFailed("no reward leaked a cancellation, or nobody counted it")


async def _joins(scene: Scene) -> None:
    """Ask for an engine more than the nodes hold, then add a node and ask again."""

    async def scaled() -> str:
        request = Request(command="scale", role="rollout", size=3)
        folder = Path(scene.cfg.run_dir or "")
        reply = await anyio.to_thread.run_sync(partial(ask, folder, request, patience_s=PATIENCE_S))
        return "nobody answered" if reply is None else reply.error or reply.done

    scene.began = time.monotonic()
    before = await scaled()
    if "rollout" not in before or "has 3" in before:
        raise PortFailed(f"a full cluster took one more: {before}")
    scene.pool.add(num_cpus=2)  # it blocks, for Ray sets handlers of signals, which is the main thread's
    after = await scaled()
    if "has 3" not in after:
        raise PortFailed(f"the new node is not used: {after}")
    await scene.steps.wait_for(2)


async def _nothing(scene: Scene) -> None:
    await scene.steps.wait_for(2)


DRILLS = {
    "engine": Drill(act=_engine),
    "rank": Drill(act=_rank),
    "engines": Drill(act=_engines),
    "node": Drill(act=_node),
    "bundle": Drill(act=_node, overrides=("fleet.roles.rollout.cpus=0.5", "fleet.roles.policy.cpus=0.5")),
    "drain": Drill(act=_drain),
    "store": Drill(act=_full),
    "leak": Drill(act=_leak, overrides=(f"reward.function={LEAKY}:reward", "reward.cheap=false")),
    "small": Drill(act=_nothing, overrides=("fleet.roles.rollout.cpus=64",), verdict=ConfigError),
    "joins": Drill(act=_joins, overrides=("fleet.roles.rollout.cpus=1.5", "fleet.roles.rollout.max=3")),
}


DRIVER = "driver"
"""The drill that kills the controller: that cannot be this process."""


def run_one(name: str, cluster: RayCluster, run_dir: Path) -> Outcome:
    """Run one drill."""
    if name != DRIVER:
        return anyio.run(drill, DRILLS[name], cluster, run_dir)
    with cluster.pool(2, num_cpus=2) as pool:
        (label,) = pool.labels.items()
        overrides = [*OVERRIDES, f'backend.labels={{{label[0]}="{label[1]}"}}']
        back_s, wrong = kill_and_resume(JOB, overrides, cluster.address, run_dir)
    if not inspect(read_record(read_job(run_dir))).balanced:
        wrong.append("the books do not balance")
    return Outcome(ended="trained", restart_s=back_s, wrong=tuple(wrong))


def main() -> None:
    """Run the drills that are named, or all of them, one after the other on one cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drills", nargs="*", metavar="DRILL", help=", ".join((*DRILLS, DRIVER)))
    parser.add_argument("--keep", type=Path, help="where the runs are kept")
    given = parser.parse_args()
    if unknown := set(given.drills).difference(DRILLS, {DRIVER}):
        parser.error(f"no such drill: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder, open_cluster(nodes=1) as cluster:
        outcomes: dict[str, Outcome] = {}
        for name in given.drills or (*DRILLS, DRIVER):
            outcomes[name] = run_one(name, cluster, (given.keep or Path(folder)) / name)
            print(name, outcomes[name], flush=True)
    table = Table("drill", "ended", "steps", "restart, s", "no step for, s", "groups again", "wrong")
    for name, one in outcomes.items():
        seconds = f"{one.restart_s:.1f}", f"{one.still_s:.1f}"
        table.add_row(name, one.ended[:60], str(one.steps), *seconds, str(one.again), "; ".join(one.wrong))
    Console(width=140).print(table)
    print(json.dumps({name: msgspec.to_builtins(one) for name, one in outcomes.items()}))
    sys.exit(any(one.wrong for one in outcomes.values()))


if __name__ == "__main__":
    main()

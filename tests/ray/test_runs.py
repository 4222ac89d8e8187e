"""Whole runs on Ray: they learn what they learn elsewhere, and nothing is left of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray")

from benchmarks._ray_cluster import RayCluster
from conductor.fleet.planned import read_plan
from conductor.inspection import inspect, read_record
from conductor.loading import read_job
from tests.support.leftovers import marked, names_in
from tests.support.pids import Watched
from tests.support.small_runs import JOB, ROOT, SMALL, finish, learned, samples

pytestmark = [pytest.mark.cluster, pytest.mark.real_time, pytest.mark.timeout(240)]


@pytest.fixture
def place() -> Generator[Path]:
    """A folder with a short name: pytest's own is too long for the paths of sockets."""
    folder = Path(f"/tmp/rr{os.getpid()}")  # noqa: S108
    folder.mkdir()
    yield folder
    assert names_in(folder) == []
    assert marked(folder) == []
    folder.rmdir()


async def test_a_run_on_ray_learns_the_same_to_the_last_bit(tmp_path: Path, ray_cluster: RayCluster) -> None:
    """At max_age 0, one thread, and a deterministic engine."""
    where = {
        "inproc": ("backend.kind=inproc",),
        "ray": ("backend.kind=ray", f"backend.address={ray_cluster.address}"),
    }
    found: dict[str, object] = {}
    for name, overrides in where.items():
        result, events = await finish(tmp_path / name, *overrides)
        found[name] = samples(events), learned(result), result.accounts
    assert found["ray"] == found["inproc"]


async def test_ranks_on_two_nodes_that_hold_a_part_each_train_what_one_process_trains(
    tmp_path: Path, ray_cluster: RayCluster
) -> None:
    """FSDP2 over actors: the same samples and rewards, and losses to 1e-5: sums over ranks are rounded otherwise."""
    common = ["steps=3", "train.eps=1e-3"]  # a smaller one makes a step of noise where gradients are 0
    sharded = ["train.sharding=full_shard", "fleet.roles.policy.instances=2", "fleet.roles.policy.placement=spread"]
    on_ray = ["backend.kind=ray", f"backend.address={ray_cluster.address}"]
    alone, its_events = await finish(tmp_path / "alone", *common)
    result, events = await finish(tmp_path / "sharded", *common, *on_ray, *sharded)
    plan = read_plan(tmp_path / "sharded" / "run" / "plan.json")
    assert len({vertex.node for vertex in plan.vertices if vertex.name.startswith("policy/")}) == 2
    assert samples(events) == samples(its_events)
    for name in ("loss", "grad_norm", "kl/behaviour"):
        here, there = ([record.metrics[name] for record in one.metrics] for one in (result, alone))
        assert here == pytest.approx(there, abs=1e-5), name


def _run(run_dir: Path, place: Path) -> list[str]:
    overrides = [*SMALL, "steps=1000", f"backend.folder={place}"]
    words = [word for override in overrides for word in ("--set", override)]
    return ["run", str(JOB), "--backend", "ray", *words, "--run-dir", str(run_dir)]


@contextmanager
def _running(command: list[str]) -> Generator[subprocess.Popen[str]]:
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-c", "from conductor.cli.main import main; main()", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def _trains(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert any(line.startswith("step ") for line in process.stdout)


def _ends(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    process.stdout.read()
    assert process.wait() == 128 + signal.SIGTERM


def test_a_run_that_is_killed_goes_on_and_one_that_is_told_to_end_leaves_nothing(tmp_path: Path, place: Path) -> None:
    """I75: ``kill -9`` runs no clean-up. The workers end with the controller; two helpers of Ray do not.

    Ray takes SIGTERM for itself and would end the process where it stands: nothing saved, groups left open.
    """
    with _running(_run(tmp_path / "run", place)) as process:
        _trains(process)
        pids = marked(place)
        with Watched(pids) as watched:
            process.kill()
            assert len(watched.left(30.0)) <= 2
            (folder,) = names_in(place)
            with _running(["resume", str(tmp_path / "run")]) as resumed:
                _trains(resumed)
                assert folder not in names_in(place)
                assert watched.left(0.0) == set()
                pids = marked(place)
                assert len(pids) > 4, "the cluster, and its workers"
                with Watched(pids) as running:
                    _ends(resumed)
                    assert running.left(5.0) == set()
    assert (tmp_path / "run" / "checkpoints").exists()
    assert inspect(read_record(read_job(tmp_path / "run"))).balanced

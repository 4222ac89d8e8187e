"""A job on two nodes, with two engines and two ranks, one of whose nodes is killed while it trains."""

from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray

from benchmarks._ray_cluster import RayCluster
from benchmarks.ray_drill import DRILLS, drill

pytestmark = [pytest.mark.cluster, pytest.mark.real_time, pytest.mark.timeout(300)]


async def test_a_node_is_killed_and_the_job_trains_on(tmp_path: Path, ray_cluster: RayCluster) -> None:
    """I04, W11: it takes an engine, a rank, their bundles, and the weights that the rank had staged for all engines.

    The rank's weights were looked for by every engine for ever. The other drills are run by hand: docs/ray.md.
    """
    outcome = await drill(DRILLS["bundle"], ray_cluster, tmp_path / "run")
    assert outcome.wrong == ()
    assert outcome.ended == "trained"
    assert outcome.fetched == 0, "no payload byte ever comes to the controller"
    assert outcome.again <= 2 * 4, "what was lent, and what waited to be trained: at most a batch each"
    assert not ray.is_initialized()

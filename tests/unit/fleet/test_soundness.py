"""What is done about nodes is bounded where a run waits for it."""

import anyio
import pytest

from conductor.config import CheckConfig
from conductor.fleet.checking import NodeCheck
from conductor.fleet.soundness import Soundness
from protocols.errors import DeadlineExceeded
from protocols.messages import WorkerId
from protocols.training import RankPort
from tests.support.scripted.ranks import Cluster, ScriptedRank
from tests.unit.fleet.test_checking import ranks_on
from tests.unit.fleet.test_moving import JOURNAL, opened


async def test_a_check_in_a_failover_is_bounded() -> None:
    """Where a network is split no pair does well, and each of 400 waves takes the deadline of a trial."""
    places = ranks_on(*"abcdefgh")
    cluster = Cluster(hung=set("abcdefgh"), where={vertex.name: vertex.node for vertex in places})
    ranks: dict[WorkerId, RankPort] = {vertex.name: ScriptedRank(vertex.name, cluster) for vertex in places}
    cfg = CheckConfig(deadline_s=60.0)
    check = NodeCheck(cfg, ranks, places=lambda: places, host=lambda: "")
    async with opened() as (_, mover, _group):
        sound = Soundness("policy", cfg, check, mover, recheck_s=150.0)
        began = anyio.current_time()
        with pytest.raises(DeadlineExceeded, match="the check of the nodes of policy did not end within 150 s"):
            await sound.recheck(JOURNAL)
        assert anyio.current_time() - began == pytest.approx(150.0)

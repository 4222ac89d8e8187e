"""The plan that a run is launched by: its file, and what was set aside before."""

from pathlib import Path

import msgspec
import pytest

from conductor.config import RoleConfig
from conductor.core.planning.plan import plan
from conductor.fleet.planned import PLAN_FILE, planned, read_plan, write_plan
from conductor.past import aside_of
from protocols.errors import ConfigError
from protocols.fleet import Plan
from protocols.incidents import Incident
from protocols.ledger import Resumed, Stepped
from protocols.messages import WeightVersion
from protocols.tracking import StepRecord
from tests.unit.planning.fleets import fleet_of, job, node


async def test_the_plan_in_the_folder_of_a_run_is_read_as_it_was(tmp_path: Path) -> None:
    cfg = msgspec.structs.replace(job(), run_dir=str(tmp_path))
    made = plan(cfg, fleet_of(node("a")))
    assert isinstance(made, Plan)
    await write_plan(made, cfg)
    assert read_plan(tmp_path / PLAN_FILE) == made


def test_a_file_that_holds_no_plan_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / PLAN_FILE
    path.write_text('{"vertices": 3}')
    with pytest.raises(ConfigError, match="vertices"):
        read_plan(path)


def test_nobody_is_planned_where_workers_were_lost_again_and_again_as_long_as_there_is_room() -> None:
    """A run that begins anew gave them back to the node that had killed them."""
    nodes = fleet_of(node("a", domain="rack"), node("b"))
    assert {vertex.node for vertex in planned(job(), nodes, (), aside={"rack"}).vertices} == {"b"}
    assert {vertex.node for vertex in planned(job(), nodes, (), aside={"rack", "b"}).vertices} == {"a"}
    large = job(engines=2, rollout=RoleConfig(cpus=6))
    assert {vertex.node for vertex in planned(large, nodes, (), aside={"rack"}).vertices} == {"a", "b"}


def stepped(step: int, seconds: float) -> Stepped:
    return Stepped(record=StepRecord(step=step, metrics={}), seconds=seconds)


def incident(version: int, seconds: float = 0.0, **aside: float) -> Incident:
    return Incident(
        role="rollout",
        workers=(),
        cause="worker",
        level="node",
        attempts=1,
        verdict="restored",
        detail="",
        version=WeightVersion(version),
        seconds=seconds,
        aside=aside,
    )


def test_what_is_set_aside_is_so_for_as_long_as_the_run_trains() -> None:
    """Between two lives no clock goes on that the record knows."""
    events = [stepped(1, 10.0), incident(1, a=9.0), stepped(2, 20.0), incident(2, b=30.0, c=5.0), stepped(3, 28.0)]
    assert aside_of(events) == {"b": 22.0}, "the last incident knows of all"
    assert aside_of(events[:3]) == {}
    assert aside_of([stepped(1, 10.0), incident(1, a=10.0), stepped(2, 20.0)]) == {}
    assert aside_of([incident(0, a=9.0), Resumed(version=WeightVersion(0))]) == {"a": 9.0}
    back = [stepped(1, 50.0), incident(1, a=9.0), Resumed(version=WeightVersion(0)), stepped(1, 20.0)]
    assert aside_of(back) == {"a": 9.0}, "a run that went back has trained less than before"
    long = [stepped(1, 10.0), incident(1, 60.0, a=9.0), stepped(2, 75.0)]
    assert aside_of(long) == {"a": 4.0}, "what is left was written down at its end"


def test_a_record_that_was_summed_up_sets_nothing_aside_again() -> None:
    """Its incidents stand behind all its steps, so that no time had passed since."""
    events = [stepped(1, 10.0), stepped(2, 5000.0), incident(1, a=3600.0)]
    assert aside_of(events) == {}

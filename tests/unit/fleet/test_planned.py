"""The file of a plan: what is kept in the run's folder is what was launched."""

from pathlib import Path

import msgspec
import pytest

from conductor.core.planning.plan import plan
from conductor.fleet.planned import PLAN_FILE, read_plan, write_plan
from protocols.errors import ConfigError
from protocols.fleet import Plan
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

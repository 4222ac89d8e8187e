"""The example of docs/fleet.md: a hook and a master of the user's, named in a job."""

from pathlib import Path

from conductor.config import FleetConfig, RoleConfig, RunConfig
from conductor.decoding import decode
from conductor.jobfile import job_values
from protocols.sections import Section
from tests.support.runs import run_config
from tests.unit.fleet.test_hooks import live

EXAMPLE = Path(__file__).parents[3] / "examples" / "fleet" / "looking_after.py"


def test_the_example_announces_what_happens_and_goes_on_with_fewer_engines(tmp_path: Path) -> None:
    notes = tmp_path / "fleet.log"
    lived = live(
        engines=3,
        hooks=(Section(kind=f"{EXAMPLE}:Announce", options={"path": str(notes)}),),
        roles={"rollout": RoleConfig(master=Section(kind=f"{EXAMPLE}:Frugal", options={"enough": 2}))},
    )
    assert lived.result is not None, lived.error
    lines = notes.read_text().splitlines()
    assert "rollout/0, rollout/1, rollout/2 started" in lines
    assert lines[-1].startswith("rollout/0: resized after")


def test_a_run_that_is_resumed_has_the_same_master_and_hooks() -> None:
    """The options of a section that lay within a table were one level too deep in the job that a run keeps."""
    master = Section(kind="m.py:Frugal", options={"enough": 2})
    fleet = FleetConfig(
        roles={"rollout": RoleConfig(master=master)}, hooks=(Section(kind="m.py:Announce", options={"path": "x"}),)
    )
    values = job_values(run_config(fleet=fleet))
    assert decode(RunConfig, values) == (run_config(fleet=fleet), [])

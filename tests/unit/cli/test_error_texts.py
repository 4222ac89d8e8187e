"""What users read who did something wrong: the field, its value, why, and what to do; to the letter, exit code 2."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conductor.cli.main import main
from conductor.review.lineage import sample_lineage
from protocols.errors import UserError
from tests.unit.cli.test_commands import JOB
from tests.unit.review.test_shares import simulated

pytestmark = pytest.mark.real_time  # the commands start a loop of their own


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job, and a run of it that has finished."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "job.toml").write_text(JOB, encoding="utf-8")
    done = invoke("run", str(folder / "job.toml"), "--run-dir", str(folder / "run"), "--quiet")
    assert done.exit_code == 0, done.output
    return folder


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


MISTAKES = {
    "a role that there is none of": (
        "validate JOB --set fleet.roles.rollot.cpus=1",
        (
            "the job has 1 problem:\n  fleet.roles.rollot: no such role; known are policy, rollout, "
            "episode, reward, evaluation; "
            "did you mean 'rollout'?"
        ),
    ),
    "a size that is none": ("scale RUN rollout=many", "'rollout=many' says no size of a role; write rollout=4"),
    "all faults of one run": (
        "simulate JOB --faults all",
        "the job has 1 problem:\n  --faults = 'all': draws other faults each time; give --seeds N as well, or a plan",
    ),
    "a distribution that is none": (
        "simulate JOB --tail often --train empirical:NOWHERE",
        (
            "the job has 2 problems:\n"
            "  backend.sample = 'often': it names no distribution: "
            "constant:SECONDS, lognormal:SIGMA, empirical:RUN_DIR; see docs/simulation.md\n"
            "  backend.train = 'empirical:NOWHERE': NOWHERE/metrics.jsonl cannot be read: "
            "[Errno 2] No such file or directory: "
            "'NOWHERE/metrics.jsonl'; see docs/simulation.md"
        ),
    ),
    "two questions": ("inspect RUN --lease L0 --step 1", "one thing at a time: --lease or --step"),
    "a sample that is none": (
        "inspect RUN --sample 3",
        "'3' names no sample; write LEASE/ATTEMPT/INDEX, as in L17/0/3",
    ),
    "a lease that was never": ("inspect RUN --sample L99/0/0", "the record tells nothing of L99"),
    "an attempt that was never": ("inspect RUN --sample L0/5/0", "L0 had no attempt 5; it had 0"),
    "a sample beyond the last": ("inspect RUN --sample L0/0/2", "L0 has samples 0 to 1"),
    "a step that was never": ("inspect RUN --step 9", "the record tells of no step 9; its last one is 2"),
    "no run": (
        "status NOWHERE",
        (
            "the job has 1 problem:\n  RUN_DIR = 'NOWHERE': no run has begun there; name the folder of a run; "
            "conductor run begins one"
        ),
    ),
    "six runs": ("report RUN RUN RUN RUN RUN RUN", "at most 5 runs are laid over one another"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_told(what: str, folder: Path) -> None:
    command, text = MISTAKES[what]
    names = {"JOB": "job.toml", "RUN": "run", "NOWHERE": "nowhere"}

    def put(text: str) -> str:
        return re.sub(r"\bJOB\b|\bRUN\b|\bNOWHERE\b", lambda found: str(folder / names[found[0]]), text)

    done = invoke(*map(put, command.split()))
    assert done.exit_code == 2
    assert done.stdout + done.stderr == f"{put(text)}\n"


def test_an_attempt_of_which_nothing_is_known_is_told() -> None:
    """It was given up before it was graded; the answer says what became of it."""
    told = simulated(0)
    attempt = next(told.all_attempts())
    attempt.receipt, attempt.fate = None, "aborted: engine_lost"
    why = "attempt 0 of L0 was never graded, so nothing is known of it: aborted: engine_lost"
    with pytest.raises(UserError, match=f"^{why}$"):
        sample_lineage(told, "L0/0/0", "grpo")

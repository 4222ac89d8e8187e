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
    options = ("--run-dir", str(folder / "forgotten"), "--quiet", "--set", "ledger.kind=memory")
    assert invoke("run", str(folder / "job.toml"), *options).exit_code == 0
    return folder


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


NO_FILE = "[Errno 2] No such file or directory"
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
    "a plan that cannot be written": (
        "plan JOB -o NOWHERE/plan.json",
        f"NOWHERE/plan.json cannot be written: {NO_FILE}: 'NOWHERE/plan.json'; name another file with -o",
    ),
    "a report that cannot be written": (
        "report RUN -o NOWHERE/report.html",
        f"NOWHERE/report.html cannot be written: {NO_FILE}: 'NOWHERE/report.html'; name another file with -o",
    ),
    "a folder that is a file": (
        "init JOB",
        "JOB cannot be written to: [Errno 17] File exists: 'JOB'; name another folder",
    ),
    "no fault": (
        "simulate JOB --faults crash",
        (
            "the job has 1 problem:\n  --faults = 'crash': 'crash' is no fault: "
            "KIND@Port.method[:WORKER]#CALL[+SECONDS]; write 'all', or faults as docs/simulation.md shows them"
        ),
    ),
    "a folder that holds a run": (
        "run JOB --run-dir RUN",
        (
            "the job has 1 problem:\n  run_dir = 'RUN': it holds a run; go on with it (conductor resume FOLDER, "
            "run --resume), or name another folder"
        ),
    ),
    "a folder in a file": (
        "run JOB --run-dir JOB/run",
        "the job has 1 problem:\n  run_dir = 'JOB/run': JOB is no folder; name another folder",
    ),
    "a lease that was never alone": (
        "inspect RUN --lease L99",
        "the record tells nothing of L99: it was never admitted, or its events are summed up",
    ),
    "a run that kept no record": (
        "report FORGOTTEN",
        (
            "the ledger 'memory' ended with its process, and nothing is left to inspect; "
            "set ledger.kind = 'sqlite' in the next run"
        ),
    ),
    "six runs": ("report RUN RUN RUN RUN RUN RUN", "at most 5 runs are laid over one another; name fewer than 6"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_told(what: str, folder: Path) -> None:
    command, text = MISTAKES[what]
    names = {"JOB": "job.toml", "RUN": "run", "FORGOTTEN": "forgotten", "NOWHERE": "nowhere"}

    def put(text: str) -> str:
        return re.sub(r"\b(?:JOB|RUN|FORGOTTEN|NOWHERE)\b", lambda found: str(folder / names[found[0]]), text)

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

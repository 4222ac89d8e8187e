"""Short runs of the example through servers."""

import re
from pathlib import Path

from conductor import Conductor, RunResult, load_config
from tests.support.small_runs import JOB, TASK

SMALL = [
    "steps=40",
    "batch_groups=16",
    "group_size=8",
    "sampling.max_tokens=2",
    "filter.equal_rewards=keep",
    f"prompts.function={TASK}:prompt",
    f"reward.function={TASK}:reward",
    "reward.cheap=true",
    "train.lr=5e-3",
    "train.threads=1",
]
"""Two digits in place of eight: learned in seconds."""


def job_over(folder: Path, **sections: str) -> Path:
    """Write the example's job with other sections: what stands in each, by name; returns the file."""
    text = JOB.read_text()
    for name, lines in sections.items():
        text, found = re.subn(rf"\[{name}\]\n(?:.+\n)+", lambda _, said=f"[{name}]\n{lines}\n": said, text)
        assert found == 1
    job = folder / "job.toml"
    job.write_text(text)
    return job


async def run(job: Path, run_dir: Path, *overrides: str) -> RunResult:
    """Run a job in its small form to the end; its books balance."""
    result = await Conductor.run(load_config(job, overrides=[*SMALL, *overrides], run_dir=str(run_dir)))
    assert result.accounts.balanced
    assert result.accounts.open == 0
    return result


def assert_learned_as_much(served: RunResult, plain: RunResult, *, least: float) -> None:
    """A run through a server ends where one in the process does, which learns from under 0.2 to ``least``."""
    assert plain.reward_first is not None
    assert plain.reward_last is not None
    assert served.reward_last is not None
    assert plain.reward_first < 0.2
    assert plain.reward_last >= least
    assert served.reward_last >= plain.reward_last - 0.1
    assert served.failures == {}
    assert max(record.metrics["kl/behaviour"] for record in served.metrics) < 1e-4

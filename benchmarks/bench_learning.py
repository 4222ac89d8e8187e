"""Does a policy for old groups, or a way to publish, cost samples?

The demo, ``examples/reverse``, with the real engine and the real trainer, from random weights until the mean reward of
five steps reaches 0.9: once on policy, then at ``max_age`` 2 under each policy and each mode. A row is the samples that
were trained until then, their ratio to those of the first row, and the mean age of what was trained.

    python -m benchmarks.bench_learning [--max-age 2] [--seed 1]

Ends with one JSON line: ``worst_ratio``; the goal is 1.5.
"""

import argparse
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from conductor import Conductor, load_config
from conductor.result import Accounts
from protocols.tracking import StepRecord

JOB = Path(__file__).parents[1] / "examples" / "reverse" / "job.toml"
REWARD = 0.9
WINDOW = 5
STEPS = 240


@dataclass
class Progress:
    """Ends a run when it has learnt enough (``Observer``)."""

    enough: anyio.CancelScope
    rewards: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)
    samples: int = 0

    def phase(self, name: str) -> None:
        """Do nothing."""

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Take in a step."""
        del accounts
        self.rewards.append(record.metrics["reward/mean"])
        self.ages.append(record.metrics["age/mean"])
        self.samples += int(record.metrics["samples/trained"])
        if statistics.fmean(self.rewards[-WINDOW:]) >= REWARD:
            self.enough.cancel()


async def learn(*overrides: str) -> Progress:
    """Run the demo until it has learnt enough.

    Raises:
        RuntimeError: It has not, after ``STEPS`` steps.
    """
    progress = Progress(anyio.CancelScope())
    with progress.enough:
        cfg = load_config(JOB, overrides=[f"steps={STEPS}", "trackers=[]", *overrides])
        await Conductor.run(cfg, observer=progress)
    if not progress.enough.cancelled_caught:
        raise RuntimeError(f"{overrides}: the reward is {progress.rewards[-1]:.2f} after {STEPS} steps")
    return progress


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-age", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    age, seed = f"max_age={asked.max_age:g}", f"seed={asked.seed}"
    policies = [(f"{name}, inflight", age, f"staleness={name}") for name in ("wait", "drop", "partial", "loose")]
    modes = [(f"wait, {mode}", age, f"publish={mode}") for mode in ("interrupt", "drain")]
    on_policy, worst = 0, 0.0
    for label, *overrides in [("on policy", "max_age=0"), *policies, *modes]:
        found = anyio.run(learn, seed, *overrides)
        on_policy = on_policy or found.samples
        ratio = found.samples / on_policy
        worst = max(worst, ratio)
        row = f"{len(found.rewards):4d} steps  {found.samples:7d} samples  {ratio:5.2f} x"
        print(f"{label:18s} {row}  age {statistics.fmean(found.ages):.2f}", flush=True)
    print(json.dumps({"worst_ratio": round(worst, 3)}))


if __name__ == "__main__":
    main()

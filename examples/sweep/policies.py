"""Run one job under each staleness policy, and lay the results side by side."""

import sys
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from conductor import Conductor, RunResult, load_config

JOB = Path(__file__).parents[1] / "reverse" / "job.toml"
POLICIES = {
    "on-policy": ["max_age=0"],
    "wait": ["max_age=1", "staleness=wait"],
    "drop": ["max_age=1", "staleness=drop"],
    "partial": ["max_age=1", "staleness=partial"],
    "loose": ["max_age=1", "staleness=loose"],
}


async def sweep(*settings: str) -> dict[str, RunResult]:
    """Run the job once for each policy, one after the other; ``settings`` are laid over all of them."""
    results: dict[str, RunResult] = {}
    for policy, overrides in POLICIES.items():
        results[policy] = await Conductor.run(load_config(JOB, overrides=[*settings, *overrides, f"name={policy}"]))
    return results


def table(results: dict[str, RunResult]) -> Table:
    """Return a row for each policy."""
    shown = Table("policy", "reward", "samples/s", "oldest token", "thrown away", "report")
    for policy, result in results.items():
        ages = [record.metrics["age/max"] for record in result.metrics if "age/max" in record.metrics]
        waste = sum(record.metrics.get("waste/groups", 0) for record in result.metrics)
        cells = (
            f"{result.reward_last:.3f}",
            f"{result.samples_per_s:.0f}",
            f"{max(ages, default=0):.0f}",
            f"{waste:.0f}",
        )
        shown.add_row(policy, *cells, f"conductor report {result.run_dir}")
    return shown


if __name__ == "__main__":
    Console().print(table(anyio.run(sweep, *(sys.argv[1:] or ["steps=40"]))))

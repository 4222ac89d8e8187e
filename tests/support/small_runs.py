"""A run of a few steps, and what must be the same wherever it runs."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from backends.ledgers.memory import MemoryLedger
from conductor import Conductor, load_config
from conductor.ports import Workloads
from conductor.result import RunResult
from protocols.ledger import Graded, LedgerEvent
from protocols.messages import LeaseId

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples" / "reverse" / "job.toml"
TASK = ROOT / "tests" / "e2e" / "two_digits.py"
SMALL = [
    "steps=4",
    "batch_groups=4",
    "group_size=4",
    "sampling.max_tokens=2",
    "filter.equal_rewards=keep",
    f"prompts.function={TASK}:prompt",
    f"reward.function={TASK}:reward",
    "train.lr=1e-1",
]
REPEATABLE = ["engine.threads=1", "engine.deterministic=true", "train.threads=1"]


async def finish(folder: Path, *overrides: str) -> tuple[RunResult, Sequence[LedgerEvent]]:
    """Run the small job to its end; returns its record as well."""
    ledger = MemoryLedger()
    cfg = load_config(JOB, overrides=[*SMALL, *REPEATABLE, *overrides], run_dir=str(folder / "run"))
    result = await Conductor.run(cfg, workloads=Workloads(ledger=ledger))
    return result, await ledger.replay()


def samples(events: Sequence[LedgerEvent]) -> dict[LeaseId, object]:
    """Return what was generated in each group, by which weights, and what it earned."""
    return {
        event.lease_id: ([(one.preview, one.tokens, one.segments) for one in event.receipt.samples], event.grades)
        for event in events
        if isinstance(event, Graded)
    }


def learned(result: RunResult) -> object:
    """Return the numbers of each step that do not measure time, and the digest of the weights."""
    assert result.checkpoint is not None
    names = ("loss", "grad_norm", "reward/mean", "entropy", "ratio/max", "kl/behaviour")
    weights = Path(result.checkpoint, "model.safetensors").read_bytes()
    steps = [[record.metrics[name] for name in names] for record in result.metrics]
    return steps, hashlib.sha256(weights).hexdigest()

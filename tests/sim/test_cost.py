"""What a group costs the controller does not grow with how many are in flight; counted, for no clock is exact."""

from pathlib import Path

from backends.ledgers.memory import MemoryLedger
from protocols.adapters import load_object
from protocols.ledger import Admitted, Generating, LedgerEvent
from protocols.rollouts import RolloutLease
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import scripted_workloads


class Pages(MemoryLedger):
    """Remembers what was appended together."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[tuple[LedgerEvent, ...]] = []

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        self.pages.append(events)
        await super().append(events)


def uneven(lease: RolloutLease) -> float:
    return 1.0 + 0.1 * (37 * lease.prompt.position % 97)


async def test_groups_that_begin_together_are_written_down_together() -> None:
    """A record on the disk was asked twice for each group before it was generated."""
    ledger = Pages()
    await run_scripted(run_config(steps=4, batch_groups=8), scripted_workloads(), ledger)
    for kind in (Admitted, Generating):
        assert [len(page) for page in ledger.pages if isinstance(page[0], kind)] == [8, 8, 8, 8]


async def test_ages_are_judged_once_a_version_and_once_a_group(tmp_path: Path) -> None:
    """All open groups were looked through whenever one was graded: with 20,000 of them that was nearly all the time."""
    (tmp_path / "mine.py").write_text(
        "from conductor.core.staleness import Drop\n\n"
        "judged = []\n\n"
        "class Counting(Drop):\n"
        "    def evict(self, groups, *, version):\n"
        "        judged.extend(groups)\n"
        "        return super().evict(groups, version=version)\n\n"
        "def counting(max_age, batch):\n"
        "    return Counting(max_age)\n"
    )
    steps, slots = 10, 64
    cfg = run_config(
        steps=steps, batch_groups=16, slots=slots, max_age=3, staleness="mine.py:counting", job_dir=str(tmp_path)
    )
    result = await run_scripted(cfg, scripted_workloads(160, duration_s=uneven))
    judged = load_object("mine.py:judged", str(tmp_path))
    assert len(judged) <= (steps + 1) * slots + result.accounts.admitted
    assert len({group.lease_id for group in judged}) == result.accounts.admitted, "and nobody is left out"

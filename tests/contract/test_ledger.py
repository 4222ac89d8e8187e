"""What every ledger keeps to."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from backends.ledgers import memory
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.grading import Grade, GradeFault
from protocols.ledger import Admitted, Claimed, Committed, Dropped, Generating, Graded, LedgerEvent, LedgerPort
from protocols.messages import DispatchId, LeaseId, PayloadRef, WeightVersion
from protocols.prompts import ChatMessage, ChatPrompt, Prompt
from protocols.rollouts import GroupReceipt
from protocols.sections import Site
from protocols.wire import over_codec

OpenLedger = Callable[[], AbstractAsyncContextManager[LedgerPort]]


@asynccontextmanager
async def _memory() -> AsyncGenerator[LedgerPort]:
    async with memory.open(memory.Config(), Host(site=Site(job_dir="/"), payloads=ScriptedPayloads())) as ledger:
        yield ledger


@asynccontextmanager
async def _memory_wired() -> AsyncGenerator[LedgerPort]:
    async with _memory() as ledger:
        yield over_codec(LedgerPort, ledger)


@pytest.fixture(params=[pytest.param(_memory, id="memory"), pytest.param(_memory_wired, id="memory-wired")])
def open_ledger(request: pytest.FixtureRequest) -> OpenLedger:
    return request.param


def generating(lease: int) -> LedgerEvent:
    return Generating(lease_id=LeaseId(f"L{lease}"), attempt=0)


def one_lease() -> tuple[LedgerEvent, ...]:
    lease, dispatch = LeaseId("L0"), DispatchId("D0")
    prompt = Prompt(
        position=3, content=ChatPrompt(messages=(ChatMessage(role="user", content="hé"),)), fields={"answer": [1, None]}
    )
    ref = PayloadRef(owner="p.1/L0/0/", key="group")
    receipt = GroupReceipt(
        lease_id=lease, attempt=0, prompt_tokens=2, payload=ref, samples=(), metadata={"a": {"b": 1}}
    )
    grades = (Grade(reward=0.5, parts={"x": 1.0}), GradeFault(kind="raised", detail="Traceback…"))
    return (
        Admitted(lease_id=lease, prompt=prompt, group_size=2),
        Generating(lease_id=lease, attempt=0),
        Graded(lease_id=lease, receipt=receipt, grades=grades),
        Claimed(dispatch_id=dispatch, version=WeightVersion(0), leases=(lease,)),
        Committed(dispatch_id=dispatch, version=WeightVersion(1), leases=(lease,)),
    )


async def test_events_come_back_as_they_were_written(open_ledger: OpenLedger) -> None:
    async with open_ledger() as ledger:
        assert await ledger.replay() == ()
        for event in one_lease():
            await ledger.append((event,))
        assert await ledger.replay() == one_lease()
        await ledger.append(())
        await ledger.append((Dropped(lease_id=LeaseId("L1"), reason="bad_prompt"),))
        assert await ledger.replay() == (*one_lease(), Dropped(lease_id=LeaseId("L1"), reason="bad_prompt"))


async def test_concurrent_appends_are_written_whole_and_in_the_order_of_the_calls(open_ledger: OpenLedger) -> None:
    async with open_ledger() as ledger, anyio.create_task_group() as tasks:
        called: list[LedgerEvent] = []

        async def append(first: int) -> None:
            events = (generating(first), generating(first + 1))
            called.extend(events)
            await ledger.append(events)

        for first in range(0, 100, 2):
            tasks.start_soon(append, first)
        await anyio.wait_all_tasks_blocked()
        assert list(await ledger.replay()) == called


async def test_a_cancelled_append_is_written_all_the_same(open_ledger: OpenLedger) -> None:
    """A transition that was acted on and not recorded would be a lost group after a restart."""
    async with open_ledger() as ledger:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ledger.append((generating(0), generating(1)))
        assert scope.cancelled_caught
        assert await ledger.replay() == (generating(0), generating(1))


async def test_replay_reaches_a_checkpoint(open_ledger: OpenLedger) -> None:
    async with open_ledger() as ledger:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ledger.replay()
        assert scope.cancelled_caught

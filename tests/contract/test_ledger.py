"""What every ledger keeps to."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from backends.ledgers import memory
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.errors import PortFailed
from protocols.grading import Grade, GradeFault
from protocols.ledger import Admitted, Claimed, Committed, Dropped, Generating, Graded, LedgerEvent, LedgerPort
from protocols.messages import DispatchId, LeaseId, PayloadRef, WeightVersion
from protocols.prompts import ChatMessage, ChatPrompt, Prompt
from protocols.rollouts import GroupReceipt
from protocols.sections import Site
from tests.support.ledgers import bulky, generating, open_on_a_full_disk, open_sqlite, replayed
from tests.support.wired import wired

OpenLedger = Callable[[], AbstractAsyncContextManager[LedgerPort]]
Opener = Callable[[Path], AbstractAsyncContextManager[LedgerPort]]


@asynccontextmanager
async def _memory(_: Path) -> AsyncGenerator[LedgerPort]:
    async with memory.open(memory.Config(), Host(site=Site(job_dir="/"), payloads=ScriptedPayloads())) as ledger:
        yield ledger


@asynccontextmanager
async def _sqlite(run_dir: Path) -> AsyncGenerator[LedgerPort]:
    async with open_sqlite(run_dir) as ledger:
        yield ledger


@asynccontextmanager
async def _sqlite_on_a_full_disk(run_dir: Path) -> AsyncGenerator[LedgerPort]:
    async with open_on_a_full_disk(run_dir) as ledger:
        yield ledger


@pytest.fixture(
    params=[
        pytest.param(_memory, id="memory"),
        pytest.param(wired(LedgerPort, _memory), id="memory-wired"),
        pytest.param(_sqlite, id="sqlite", marks=pytest.mark.real_time),
        pytest.param(wired(LedgerPort, _sqlite), id="sqlite-wired", marks=pytest.mark.real_time),
    ]
)
def open_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> OpenLedger:
    return partial(request.param, tmp_path)


@pytest.fixture(
    params=[
        pytest.param(_sqlite_on_a_full_disk, id="sqlite", marks=pytest.mark.real_time),
        pytest.param(wired(LedgerPort, _sqlite_on_a_full_disk), id="sqlite-wired", marks=pytest.mark.real_time),
    ]
)
def open_ledger_that_fills_up(request: pytest.FixtureRequest, tmp_path: Path) -> OpenLedger:
    """Those that can fail at all."""
    return partial(request.param, tmp_path)


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
        assert await replayed(ledger) == ()
        for event in one_lease():
            await ledger.append((event,))
        assert await replayed(ledger) == one_lease()
        await ledger.append(())
        await ledger.append((Dropped(lease_id=LeaseId("L1"), reason="bad_prompt"),))
        assert await replayed(ledger) == (*one_lease(), Dropped(lease_id=LeaseId("L1"), reason="bad_prompt"))


async def test_a_record_can_be_read_from_any_event_on(open_ledger: OpenLedger) -> None:
    """A million events at once are a gigabyte: a resume reads page by page, and holds none."""
    async with open_ledger() as ledger:
        events = tuple(map(generating, range(5000)))
        await ledger.append(events[:7])
        await ledger.append(events[7:])
        assert await replayed(ledger) == events
        for after in (0, 3, 7, 64, 100, 4999):
            page = await ledger.replay(after)
            assert page, after
            assert page == events[after : after + len(page)]
        assert await ledger.replay(5000) == await ledger.replay(6000) == ()
        await ledger.compact((generating(1), generating(2)))
        assert await ledger.replay(1) == (generating(2),)
        assert await ledger.replay(2) == ()


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
        assert list(await replayed(ledger)) == called


async def test_many_appenders_that_go_on_and_on_are_written_in_the_order_of_the_calls(open_ledger: OpenLedger) -> None:
    """Appends of different sizes meet in one commit, and more events come than one row holds."""
    called: list[LedgerEvent] = []
    rng = random.Random(7)

    async def append(ledger: LedgerPort) -> None:
        for _ in range(20):
            events = tuple(generating(len(called) + index) for index in range(rng.randrange(9)))
            called.extend(events)
            await ledger.append(events)
            assert set(events) <= set(await replayed(ledger)), "durable on return"

    async with open_ledger() as ledger:
        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(append, ledger)
        assert list(await replayed(ledger)) == called


async def test_a_cancelled_append_is_written_all_the_same(open_ledger: OpenLedger) -> None:
    """A transition that was acted on and not recorded would be a lost group after a restart."""
    async with open_ledger() as ledger:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ledger.append((generating(0), generating(1)))
        assert scope.cancelled_caught
        assert await replayed(ledger) == (generating(0), generating(1))


async def test_appends_that_are_cancelled_in_between_leave_the_order_as_it_was(open_ledger: OpenLedger) -> None:
    """A native cancellation goes through every shield: it must not take an event out of the middle either."""
    async with open_ledger() as ledger:
        appends = [asyncio.ensure_future(ledger.append((generating(lease),))) for lease in range(30)]
        await asyncio.sleep(0)
        for append in appends[::3]:
            append.cancel()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ledger.append((generating(30),))
        await ledger.append((generating(31),))
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert await replayed(ledger) == tuple(generating(lease) for lease in range(32))


@pytest.mark.parametrize("ask", [lambda ledger: ledger.replay(0), lambda ledger: ledger.lost()], ids=["replay", "lost"])
async def test_what_changes_nothing_reaches_a_checkpoint(
    open_ledger: OpenLedger, ask: Callable[[LedgerPort], Awaitable[object]]
) -> None:
    async with open_ledger() as ledger:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ask(ledger)
        assert scope.cancelled_caught


async def test_nothing_is_lost_where_nothing_was_damaged(open_ledger: OpenLedger) -> None:
    async with open_ledger() as ledger:
        assert await ledger.lost() == 0
        await ledger.append((generating(0),))
        assert await ledger.lost() == 0


async def test_compaction_puts_events_in_the_place_of_all_before_it(open_ledger: OpenLedger) -> None:
    async with open_ledger() as ledger:
        for lease in range(100):
            await ledger.append((generating(lease),))
        await ledger.compact(one_lease())
        assert await replayed(ledger) == one_lease()
        await ledger.append((generating(1),))
        assert await replayed(ledger) == (*one_lease(), generating(1))
        await ledger.compact(())
        assert await replayed(ledger) == ()
        await ledger.append((generating(2),))
        assert await replayed(ledger) == (generating(2),)


async def test_compaction_takes_its_place_among_appends(open_ledger: OpenLedger) -> None:
    """What was appended before it is gone, what is appended after it stays, however they wait."""
    async with open_ledger() as ledger, anyio.create_task_group() as tasks:
        tasks.start_soon(ledger.append, (generating(0),))
        tasks.start_soon(ledger.compact, (generating(1),))
        tasks.start_soon(ledger.append, (generating(2),))
        await anyio.wait_all_tasks_blocked()
        assert await replayed(ledger) == (generating(1), generating(2))


async def test_a_cancelled_compaction_happens_all_the_same(open_ledger: OpenLedger) -> None:
    async with open_ledger() as ledger:
        await ledger.append((generating(0), generating(1)))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ledger.compact((generating(1),))
        assert scope.cancelled_caught
        assert await replayed(ledger) == (generating(1),)


async def test_after_one_append_failed_every_later_one_fails(open_ledger_that_fills_up: OpenLedger) -> None:
    """A record with a gap proves nothing: a smaller event that would fit again must not be written."""
    async with open_ledger_that_fills_up() as ledger:
        await ledger.append((generating(0),))
        with pytest.raises(PortFailed, match="disk is full"):
            await ledger.append((generating(1), bulky(2, 10_000)))
        with pytest.raises(PortFailed, match="disk is full"):
            await ledger.append((generating(3),))
        with pytest.raises(PortFailed, match="disk is full"):
            await ledger.compact(())
        assert await replayed(ledger) == (generating(0),)


async def test_appends_that_share_a_commit_fail_together_and_each_is_told(
    open_ledger_that_fills_up: OpenLedger,
) -> None:
    async with open_ledger_that_fills_up() as ledger:
        events = [(generating(0),), (bulky(1, 10_000),), (generating(2),)]
        outcomes = await asyncio.gather(*[ledger.append(one) for one in events], return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [PortFailed] * 3
        assert len({id(outcome) for outcome in outcomes}) == 3, "an error of one's own each"
        assert await replayed(ledger) == ()

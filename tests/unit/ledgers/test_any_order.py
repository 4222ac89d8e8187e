"""Whatever is done to a ledger, and however it is left, it holds what a list would hold."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.ledgers import sqlite
from protocols.ledger import LedgerEvent
from tests.support.arbitrary import values
from tests.support.ledgers import leave_as_killed, open_sqlite, replayed, site_of

Action = tuple[Literal["append", "compact", "close", "kill"], int]

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 200)),
        st.tuples(st.just("compact"), st.integers(0, 200)),
        st.tuples(st.sampled_from(["close", "kill"]), st.just(0)),
    ),
    max_size=12,
)


async def act(folder: Path, actions: Sequence[Action], events: Sequence[LedgerEvent]) -> None:
    expected: list[LedgerEvent] = []
    drawn = 0
    lives = [folder / "0"]
    lives[0].mkdir()
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(open_sqlite(lives[0]))
        for action, count in actions:
            fresh = [events[(drawn + index) % len(events)] for index in range(count)]
            drawn += count
            if action == "append":
                await ledger.append(tuple(fresh))
                expected += fresh
            elif action == "compact":
                await ledger.compact(tuple(fresh))
                expected = fresh
            else:
                resume = bool(expected) or drawn > 0
                if action == "kill":
                    lives.append(leave_as_killed(lives[-1], folder / str(len(lives))))
                await stack.aclose()
                ledger = await stack.enter_async_context(open_sqlite(lives[-1], resume=resume))
            assert await ledger.lost() == 0
            assert list(await replayed(ledger)) == expected
            assert list(sqlite.read(sqlite.Config(), site_of(lives[-1])).events) == expected


@pytest.mark.real_time
@settings(max_examples=20)
@given(actions=ACTIONS, events=st.lists(values(LedgerEvent), min_size=1, max_size=20))
def test_any_order_of_appends_compactions_and_lives_equals_a_list(
    actions: list[Action], events: list[LedgerEvent]
) -> None:
    with TemporaryDirectory() as folder:
        anyio.run(act, Path(folder), actions, events)

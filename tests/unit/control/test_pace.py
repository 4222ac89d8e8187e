"""How often a run may be looked at."""

import anyio
import pytest

from conductor.control.desk import Desk
from conductor.control.messages import Request
from conductor.core.waits import Waits
from protocols.aio import clock
from tests.support.runs import run_config


async def test_a_run_is_looked_at_ten_times_a_second_at_most_however_many_ask() -> None:
    """Otherwise whoever asks without pause would take the event loop for himself."""
    desk = Desk(run_config(), Waits(clock()))
    looks: list[float] = []

    async def ask() -> None:
        reply = await desk.answer(Request(command="status"))
        assert reply.status is not None
        assert reply.status.phase == "starting"
        looks.append(anyio.current_time())

    async with anyio.create_task_group() as group:
        for _ in range(11):
            group.start_soon(ask)
    assert looks == pytest.approx([number / 10 for number in range(11)])

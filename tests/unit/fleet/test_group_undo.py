"""The undo of a group is bounded, and says so where its deadline cut it."""

from contextlib import AbstractAsyncContextManager

import anyio
import pytest

from conductor.fleet.group import WorkerGroup, open_group
from protocols.errors import PortFailed
from protocols.messages import WorkerId
from tests.unit.fleet.test_group import SITE, START_S, BrokenLauncher, rollouts


class HangingLauncher(BrokenLauncher):
    """Never comes back from ending a worker."""

    async def kill(self, worker_id: WorkerId) -> None:
        await anyio.sleep_forever()


def open_hanging() -> AbstractAsyncContextManager[WorkerGroup]:
    return open_group(rollouts(), HangingLauncher(), SITE, start_s=START_S, stop_s=5.0)


async def test_an_undo_that_hangs_is_cut_and_is_an_error() -> None:
    """W14: one worker that cannot be ended held up the end of all others for ever."""
    with pytest.raises(PortFailed, match="not ended within 5 s"):
        async with open_hanging():
            pass
    assert anyio.current_time() == pytest.approx(5.0)


async def test_an_undo_that_hangs_is_a_note_on_what_went_wrong_before_it() -> None:
    """W07: the verdict stands."""
    with pytest.raises(KeyError) as caught:
        async with open_hanging():
            raise KeyError("the run's own")
    assert caught.value.__notes__ == ["teardown: not ended within 5 s"]

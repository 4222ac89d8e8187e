"""Weights that are sent to a server which does not take them."""

import anyio
import pytest

from backends.engines._http import cargo
from protocols.errors import DeadlineExceeded
from tests.support.http_engines import KINDS, Published, open_attached, open_test_server

pytestmark = pytest.mark.real_time

each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
async def test_a_server_that_never_comes_to_the_broadcast_costs_a_load(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs, and answers nothing: neither the meeting nor the answer is waited for without end."""
    monkeypatch.setattr(cargo, "MEET_S", 0.5)
    monkeypatch.setattr(cargo, "ANSWER_S", 0.1)
    published = Published()
    async with (
        open_test_server(kind, faults="hang@Engine.load_weights#1") as url,
        open_attached(kind, url, published, weights="gloo") as engine,
    ):
        with anyio.fail_after(20), pytest.raises(DeadlineExceeded, match="the meeting with http"):
            await engine.load_weights(await published.manifest(0))
        assert (await engine.status()).version is None
        monkeypatch.undo()
        assert await engine.load_weights(await published.manifest(0)) == 0


@each_kind
async def test_a_load_that_is_cancelled_leaves_a_server_that_takes_the_next(kind: str) -> None:
    """A publish has no more time, or newer weights are wanted."""
    published = Published()
    async with (
        open_test_server(kind, faults="hang@Engine.load_weights#1") as url,
        open_attached(kind, url, published, weights="gloo") as engine,
    ):
        with anyio.move_on_after(0.5) as cut:
            await engine.load_weights(await published.manifest(0))
        assert cut.cancelled_caught
        assert await engine.load_weights(await published.manifest(1)) == 1
        assert (await engine.status()).version == 1

"""What every placement keeps to."""

from collections.abc import Callable

import anyio
import msgspec
import pytest

from backends._machine import MachinePlacement
from protocols.backend import PlacementPort, ReserveRequest, Resources
from protocols.errors import Infeasible, Transient
from protocols.wire import over_codec

MakePlacement = Callable[[Resources], PlacementPort]


@pytest.fixture(
    params=[
        pytest.param(MachinePlacement, id="inproc"),
        pytest.param(lambda total: over_codec(PlacementPort, MachinePlacement(total)), id="inproc-wired"),
        pytest.param("ray_placement", id="ray", marks=[pytest.mark.real_time, pytest.mark.cluster]),
    ]
)
def make_placement(request: pytest.FixtureRequest) -> MakePlacement:
    return request.getfixturevalue(request.param) if isinstance(request.param, str) else request.param


def ask(reservation_id: str, node: str | None = None, **resources: float) -> ReserveRequest:
    return ReserveRequest(reservation_id=reservation_id, resources=msgspec.convert(resources, Resources), node=node)


async def free(placement: PlacementPort) -> Resources:
    (node,) = (await placement.inventory()).nodes
    return node.free


async def test_what_is_reserved_is_not_free(make_placement: MakePlacement) -> None:
    placement = make_placement(Resources(cpus=4, accelerators=1, memory_gib=8))
    await placement.reserve(ask("a", cpus=1.5))
    await placement.reserve(ask("b", cpus=0.5, accelerators=1, memory_gib=2))
    assert await free(placement) == Resources(cpus=2, accelerators=0, memory_gib=6)
    (node,) = (await placement.inventory()).nodes
    assert node.total == Resources(cpus=4, accelerators=1, memory_gib=8)


async def test_reserving_and_releasing_are_idempotent_by_id(make_placement: MakePlacement) -> None:
    """W05: a reply that was lost is asked for again, and a dead run's reservations are released by id."""
    placement = make_placement(Resources(cpus=4))
    for _ in range(2):
        await placement.reserve(ask("a", cpus=3))
        assert await free(placement) == Resources(cpus=1)
    for _ in range(2):
        await placement.release("a")
        await placement.release("of a dead run")
        assert await free(placement) == Resources(cpus=4)


async def test_more_than_there_is_is_infeasible_with_the_numbers(make_placement: MakePlacement) -> None:
    """I20, W04: waiting for resources that do not exist lasts for ever."""
    placement = make_placement(Resources(cpus=4))
    with pytest.raises(Infeasible) as refused:
        await placement.reserve(ask("big", cpus=5))
    assert (refused.value.asked, refused.value.available) == (5, 4)
    with pytest.raises(Infeasible, match="accelerators"):
        await placement.reserve(ask("gpu", accelerators=1))
    with pytest.raises(Infeasible, match="memory"):
        await placement.reserve(ask("large", memory_gib=1))
    assert await free(placement) == Resources(cpus=4), "a failed start leaves nothing reserved (W01)"


async def test_what_would_fit_later_is_transient(make_placement: MakePlacement) -> None:
    placement = make_placement(Resources(cpus=4))
    await placement.reserve(ask("a", cpus=3))
    with pytest.raises(Transient, match="1 of 4"):
        await placement.reserve(ask("b", cpus=2))
    await placement.release("a")
    await placement.reserve(ask("b", cpus=2))


async def test_whoever_asks_for_nothing_shares(make_placement: MakePlacement) -> None:
    placement = make_placement(Resources(cpus=1))
    await placement.reserve(ask("a", cpus=1))
    await placement.reserve(ask("b"))
    assert await free(placement) == Resources(cpus=0)


async def test_the_node_that_was_asked_for_is_the_one_that_is_taken(make_placement: MakePlacement) -> None:
    """A plan names nodes; what ran elsewhere would have its ranks and devices wrong."""
    placement = make_placement(Resources(cpus=1))
    (node,) = (await placement.inventory()).nodes
    with pytest.raises(Infeasible, match="no such node"):
        await placement.reserve(ask("a", node=f"not {node.name}", cpus=1))
    assert await free(placement) == Resources(cpus=1)
    await placement.reserve(ask("a", node=node.name, cpus=1))
    assert await free(placement) == Resources(cpus=0)


async def test_every_call_reaches_a_checkpoint(make_placement: MakePlacement) -> None:
    placement = make_placement(Resources(cpus=1))
    for call in (placement.inventory, lambda: placement.reserve(ask("a", cpus=9)), lambda: placement.release("a")):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught

"""Which engine gets a request."""

import pytest

from backends.engines import _routing
from backends.engines._member import Member
from backends.engines._routing import Routing
from protocols.inference import GenerateRequest, SampleRequest, Sampling
from protocols.messages import WeightVersion, WorkerId
from tests.support.scripted.engine import ScriptedEngine


def members(count: int) -> list[Member]:
    return [
        Member(WorkerId(f"rollout/{number}"), ScriptedEngine(), confirmed=WeightVersion(0)) for number in range(count)
    ]


def turn(lease: int, number: int, *, samples: int = 1) -> GenerateRequest:
    named = [SampleRequest(request_id=f"p.1/L{lease}/0/{index}/{number}", stream="s") for index in range(samples)]
    return GenerateRequest(prompt_ids=(1,), samples=tuple(named), sampling=Sampling(max_tokens=1))


def play(routing: Routing, request: GenerateRequest) -> Member:
    """Send a request and let it end."""
    member = routing.choose(request)
    assert member is not None
    routing.begin(member, request)
    routing.end(member, request)
    return member


def test_the_next_turn_goes_where_the_last_one_was_made() -> None:
    """The tokens before it are computed there, and anywhere else they would be computed anew."""
    routing = Routing(members(4))
    first = [play(routing, turn(lease, 0)) for lease in range(4)]
    assert len({member.name for member in first}) == 4
    for number in (1, 2):
        assert [play(routing, turn(lease, number)) for lease in (2, 0, 3, 1)] == [
            first[lease] for lease in (2, 0, 3, 1)
        ]


def test_newer_weights_know_nothing_of_older_turns() -> None:
    one, other = both = members(2)
    routing = Routing(both)
    assert play(routing, turn(0, 0)) is one
    one.confirmed = other.confirmed = WeightVersion(1)
    assert play(routing, turn(0, 1)) is other, "whose turn it is"


@pytest.mark.parametrize("gone", ["stale", "leaving"])
def test_a_member_that_does_not_serve_is_not_waited_for(gone: str) -> None:
    one, other = both = members(2)
    routing = Routing(both)
    assert play(routing, turn(0, 0)) is one
    if gone == "stale":
        one.stale()
    else:
        one.leaving = True
    assert play(routing, turn(0, 1)) is other


def test_a_busy_member_is_not_waited_for() -> None:
    one, other = both = members(2)
    routing = Routing(both)
    assert play(routing, turn(0, 0)) is one
    routing.begin(one, turn(8, 0, samples=9))
    routing.begin(other, turn(7, 0, samples=4))
    assert routing.choose(turn(0, 1)) is one, "9 are no more than twice 4 and this one"
    routing.begin(one, turn(9, 0))
    assert routing.choose(turn(0, 1)) is other


def test_what_was_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has millions of samples."""
    monkeypatch.setattr(_routing, "REMEMBERED", 2)
    one, other, third = members(3)
    routing = Routing([one, other, third])
    assert [play(routing, turn(lease, 0)) for lease in range(3)] == [one, other, third]
    routing.begin(one, turn(9, 0))
    assert play(routing, turn(2, 1)) is third
    assert play(routing, turn(0, 1)) is other, "who has least to do"

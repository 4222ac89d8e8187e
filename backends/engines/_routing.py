"""Which engine gets a request."""

from collections import OrderedDict
from collections.abc import Iterable

from backends.engines._loads import Loads
from backends.engines._member import Member
from protocols.inference import GenerateRequest
from protocols.messages import WeightVersion

REMEMBERED = 65_536
"""Samples whose last turn is known; of older ones it is forgotten."""


class Routing:
    """Sends each request to the member that serves and has least to do, but a next turn where the last was made.

    A turn begins with all the tokens of those before it. Whoever made the last one has computed them, with the weights
    that it served then: with newer ones it knows no more than others. It is not waited for: it gets the turn as long as
    it has at most twice as much to do as the least busy one, and that turn.

    Args:
        members: All that there are.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        self._loads = Loads(members)
        self._made: OrderedDict[str, tuple[Member, WeightVersion | None]] = OrderedDict()

    def add(self, member: Member) -> None:
        """Take note of a member that has nothing to do yet."""
        self._loads.add(member)

    def remove(self, member: Member) -> None:
        """Forget a member."""
        self._loads.remove(member)

    def choose(self, request: GenerateRequest) -> Member | None:
        """Return who is to get a request; None where nobody serves."""
        least = next((member for member in self._loads if _serves(member)), None)
        if least is None:
            return None
        last, version = self._made.get(_conversation(request), (least, least.confirmed))
        bearable = last.samples <= 2 * least.samples + len(request.samples)
        knows = last in self._loads and _serves(last) and last.confirmed == version
        return last if knows and bearable else least

    def begin(self, member: Member, request: GenerateRequest) -> None:
        """Count a request to a member's."""
        member.samples += len(request.samples)
        self._loads.put(member, member.samples)
        conversation = _conversation(request)
        self._made[conversation] = (member, member.confirmed)
        self._made.move_to_end(conversation)
        if len(self._made) > REMEMBERED:
            self._made.popitem(last=False)

    def end(self, member: Member, request: GenerateRequest) -> None:
        """Take note that a request is over, however it ended."""
        member.left(len(request.samples))
        self._loads.put(member, member.samples)


def _serves(member: Member) -> bool:
    return member.confirmed is not None and not member.leaving


def _conversation(request: GenerateRequest) -> str:
    """Return what the ids of all turns begin with: ``registration/lease/attempt/sample``."""
    return request.samples[0].request_id.rpartition("/")[0]

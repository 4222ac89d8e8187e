"""What a server works on for us. Changed between two awaits only."""

from collections.abc import Iterable, Sequence

import anyio

from backends.engines._prefixes import AbortedPrefixes
from protocols.errors import Aborted, ConductorError
from protocols.inference import GenerateRequest, Generation


class Call:
    """One generate request on its way.

    Attributes:
        request: What was asked.
        ids: Of its samples.
        scope: Ends the wait for the server's answers.
        heard: Ids for which the server has answered, if only to refuse them.
        ended: Set when it has an outcome.
        prefix: Of the abort that hit it.
        held: Around each sample's wait for its turn to be sent.
        generation: Its result.
        failure: Or what came instead.
    """

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.ids = tuple(sample.request_id for sample in request.samples)
        self.scope = anyio.CancelScope()
        self.heard: set[str] = set()
        self.ended = anyio.Event()
        self.prefix: str | None = None
        self.held: dict[anyio.CancelScope, None] = {}
        self.generation: Generation | None = None
        self.failure: ConductorError | None = None

    def withdraw(self) -> None:
        """Do not send what was not sent yet."""
        for scope in self.held:
            scope.cancel()

    @property
    def answered(self) -> bool:
        """Whether the server has nothing of it any more."""
        return len(self.heard) == len(self.ids)


class Calls:
    """The calls that run, the prefixes that were aborted, and what may run on a server that nobody listens to."""

    def __init__(self) -> None:
        self._running: dict[Call, None] = {}
        self._live: set[str] = set()
        self._aborted = AbortedPrefixes()
        self._unheard: set[str] = set()
        self._dropped: dict[Call, None] = {}

    @property
    def live(self) -> frozenset[str]:
        """Ids that run, as far as is known, those that nobody listens to included."""
        return frozenset(self._live | self._unheard)

    @property
    def awaited(self) -> int:
        """How many requests the server has whose answers are waited for."""
        return len(self._live)

    @property
    def unheard(self) -> bool:
        """Whether some may run whose connection is gone."""
        return bool(self._unheard)

    @property
    def dropped(self) -> Sequence[Call]:
        """Calls that nobody waits for any more."""
        return tuple(self._dropped)

    def refusal(self, request: GenerateRequest) -> Aborted | None:
        """Return the abort that came before a request."""
        for sample in request.samples:
            prefix = self._aborted.match(sample.request_id)
            if prefix is not None:
                return Aborted(prefix=prefix)
        return None

    def collides(self, ids: Sequence[str]) -> bool:
        """Return whether ids repeat, or run already."""
        return len(set(ids)) < len(ids) or not self._live.isdisjoint(ids) or not self._unheard.isdisjoint(ids)

    def begin(self, request: GenerateRequest) -> Call:
        """Take note of a call."""
        call = Call(request)
        self._running[call] = None
        self._live.update(call.ids)
        return call

    def end(self, call: Call) -> None:
        """Take note that a call is over; where the server did not say so itself, it may still run there."""
        del self._running[call]
        self._dropped.pop(call, None)
        self._live.difference_update(call.ids)
        self._unheard.update(name for name in call.ids if name not in call.heard)
        call.ended.set()

    def drop(self, call: Call) -> None:
        """Take note that nobody waits for a call."""
        self._dropped[call] = None

    def abort(self, prefix: str) -> list[Call]:
        """Remember a prefix; returns the calls that it hits, marked."""
        self._aborted.add(prefix)
        hit = [call for call in self._running if any(name.startswith(prefix) for name in call.ids)]
        for call in hit:
            call.prefix = call.prefix or prefix
        return hit

    def forget_unheard(self) -> None:
        """Take note that the server runs nothing but what is heard."""
        self._unheard.clear()


def ids_of(calls: Iterable[Call]) -> list[str]:
    """Return the ids of all samples of calls."""
    return [name for call in calls for name in call.ids]

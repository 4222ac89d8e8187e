"""Two roles of one's own: writers ask judges, and judges keep what they were asked in a queue that an archive empties.

See "Roles call one another" in docs/fleet.md.
"""

from typing import Protocol

from protocols.adapters import Host
from protocols.messages import Message
from protocols.roles import Roles


class Text(Message, frozen=True, kw_only=True):
    """What is judged."""

    words: tuple[str, ...]


class Judging(Protocol):
    """What others may ask of a judge."""

    async def score(self, text: Text) -> float:
        """Return the share of words that are long."""
        ...


class Judge:
    """Made once in each worker of the role ``judge``."""

    def __init__(self, host: Host, *, long: int = 4) -> None:
        self._roles = _required(host.roles)
        self._long = long

    async def score(self, text: Text) -> float:
        """Score a text; what was scored goes to the archive, and waits here while that is behind."""
        await self._roles.queue("scored", Text).put(text)
        return sum(len(word) >= self._long for word in text.words) / len(text.words)

    async def agree(self, limit: int) -> int:
        """Meet all other judges, and take over the limit of the first."""
        generation = await self._roles.rendezvous()
        await self._roles.barrier(generation)
        self._long = await self._roles.broadcast(generation, limit)
        return self._long


class Writer:
    """Made once in each worker of the role ``writer``."""

    def __init__(self, host: Host) -> None:
        self._judges = _required(host.roles).of("judge", Judging)

    async def best(self, texts: tuple[Text, ...]) -> Text:
        """Return the text that the judges like most; each text is judged by the judge that is least busy."""
        return max([(await self._judges.one.score(text), text.words, text) for text in texts])[2]


class Archive:
    """Made once in the one worker of the role ``archive``."""

    def __init__(self, host: Host) -> None:
        self._scored = _required(host.roles).queue("scored", Text)

    async def read(self) -> tuple[Text, ...]:
        """Return all that was scored, until the queue is closed."""
        return tuple([text async for text in self._scored])


def _required(roles: Roles | None) -> Roles:
    if roles is None:
        raise RuntimeError("this runs as a worker of a job only")
    return roles

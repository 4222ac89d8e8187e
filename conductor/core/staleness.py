"""Samplers: which groups are trained next, and what becomes of one that is too old.

The age of a group is the trainer's version when it is trained, less that of its oldest token. Admission bounds
how much is in flight, and so ages on average; a sampler bounds each of them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from protocols.messages import LeaseId, WeightVersion

Policy = Literal["loose", "wait", "drop", "partial"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """What a sampler knows of an open group.

    Attributes:
        lease_id: Names it.
        number: In the order of admission, from 0.
        version: Of its oldest token; while it is generated, of the weights that the engines served when it began.
        ready: Whether it is graded and may be trained.
    """

    lease_id: LeaseId
    number: int
    version: WeightVersion
    ready: bool


class Sampler(Protocol):
    """Decides over open groups. Pure: the same groups and version give the same answer.

    Every method gets the open groups in the order of admission, and the trainer's version: a group that is selected
    now has the age ``version - group.version``.
    """

    def admit(self, granted: int, groups: Sequence[Group], *, version: WeightVersion) -> int:
        """Return how many of the groups that the admission law grants are admitted now, 0 to ``granted``."""
        ...

    def select(self, groups: Sequence[Group], *, wanted: int, version: WeightVersion) -> Sequence[LeaseId]:
        """Return the ready groups of the next batch, ``wanted`` of them, or none: then the trainer waits."""
        ...

    def evict(self, groups: Sequence[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
        """Return the ready groups to give up; others are admitted in their place."""
        ...

    def interrupt(self, groups: Sequence[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
        """Return the groups, ready or not, to generate once more from their prompts under the newest weights."""
        ...


class Loose:
    """Trains the oldest first, whatever its age."""

    def admit(self, granted: int, groups: Sequence[Group], *, version: WeightVersion) -> int:
        """Admit what is granted."""
        del groups, version
        return granted

    def select(self, groups: Sequence[Group], *, wanted: int, version: WeightVersion) -> Sequence[LeaseId]:
        """Take the oldest ready groups."""
        del version
        ready = [group.lease_id for group in groups if group.ready]
        return ready[:wanted] if len(ready) >= wanted else ()

    def evict(self, groups: Sequence[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
        """Give up none."""
        del groups, version
        return ()

    def interrupt(self, groups: Sequence[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
        """Interrupt none."""
        del groups, version
        return ()


@dataclass(frozen=True)
class Wait(Loose):
    """Lets the trainer wait for a group that would else be over age: nothing is thrown away.

    A group that the engines began under version ``b`` may be trained at version ``b + max_age`` at the latest. Groups
    that are due first go first; the trainer waits only while what would be left could not all be trained in time.
    """

    max_age: float
    batch: int

    def select(self, groups: Sequence[Group], *, wanted: int, version: WeightVersion) -> Sequence[LeaseId]:
        """Take the ready groups that are due first, unless one that still runs has to come first."""
        in_turn = sorted(groups, key=lambda group: (group.version, group.number))
        chosen = [group for group in in_turn if group.ready][:wanted]
        if len(chosen) < wanted:
            return ()
        taken = {group.lease_id for group in chosen}
        left = [group for group in in_turn if group.lease_id not in taken]
        possible = self._in_time(in_turn[:wanted], version) and self._in_time(in_turn[wanted:], version + 1)
        if possible and not self._in_time(left, version + 1):
            return ()
        return [group.lease_id for group in groups if group.lease_id in taken]

    def _in_time(self, in_turn: Sequence[Group], version: int) -> bool:
        """Return whether all can be trained in time, from ``version`` on a batch of them at a step."""
        latest = math.ceil(self.max_age)
        return all(group.version + latest >= version + place // self.batch for place, group in enumerate(in_turn))


@dataclass(frozen=True)
class Drop(Loose):
    """Gives up what is over age when it could be trained, and has it replaced."""

    max_age: float

    def select(self, groups: Sequence[Group], *, wanted: int, version: WeightVersion) -> Sequence[LeaseId]:
        """Take the oldest ready groups that are not over age."""
        return super().select(_fresh(groups, self.max_age, version), wanted=wanted, version=version)

    def evict(self, groups: Sequence[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
        """Give up those over age."""
        return [group.lease_id for group in _over_age(groups, self.max_age, version) if group.ready]


@dataclass(frozen=True)
class Partial(Loose):
    """Lets groups go on under new weights, and begins those anew whose oldest token would be over age."""

    max_age: float

    def select(self, groups: Sequence[Group], *, wanted: int, version: WeightVersion) -> Sequence[LeaseId]:
        """Take the oldest ready groups that are not over age."""
        return super().select(_fresh(groups, self.max_age, version), wanted=wanted, version=version)

    def interrupt(self, groups: Sequence[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
        """Begin those over age anew."""
        return [group.lease_id for group in _over_age(groups, self.max_age, version)]


def _over_age(groups: Iterable[Group], max_age: float, version: int) -> list[Group]:
    return [group for group in groups if version - group.version > math.ceil(max_age)]


def _fresh(groups: Iterable[Group], max_age: float, version: int) -> list[Group]:
    return [group for group in groups if version - group.version <= math.ceil(max_age)]


SAMPLERS: Mapping[Policy, Callable[[float, int], Sampler]] = {
    "loose": lambda _, __: Loose(),
    "wait": Wait,
    "drop": lambda max_age, _: Drop(max_age),
    "partial": lambda max_age, _: Partial(max_age),
}
"""By the name of the policy, given ``max_age`` and the groups of a batch."""

STRICT = frozenset({"wait", "drop", "partial"})
"""The policies that bound every age by ``max_age``, rounded up."""

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

    Every method gets the open groups in the order of admission, to iterate over as often as it needs, and the trainer's
    version: a group that is selected now has the age ``version - group.version``.
    """

    def admit(self, granted: int, groups: Iterable[Group], *, version: WeightVersion) -> int:
        """Return how many of the groups that the admission law grants are admitted now, 0 to ``granted``."""
        ...

    def select(self, groups: Iterable[Group], *, wanted: int, most: int, version: WeightVersion) -> Sequence[LeaseId]:
        """Return the ready groups of the next batch, or none: then the trainer waits.

        Args:
            groups: Open ones.
            wanted: How many groups the batch has; fewer than a whole one where filtered groups are not replaced.
            most: A whole batch: how many it may have.
            version: The trainer's.
        """
        ...

    def evict(self, groups: Iterable[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
        """Return the ready groups to give up; others are admitted in their place."""
        ...

    def interrupt(self, groups: Iterable[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
        """Return the groups, ready or not, to generate once more from their prompts under the newest weights."""
        ...


class Loose:
    """Trains the oldest first, whatever its age."""

    def admit(self, granted: int, groups: Iterable[Group], *, version: WeightVersion) -> int:
        """Admit what is granted."""
        del groups, version
        return granted

    def select(self, groups: Iterable[Group], *, wanted: int, most: int, version: WeightVersion) -> Sequence[LeaseId]:
        """Take the oldest ready groups."""
        del most, version
        ready = [group.lease_id for group in groups if group.ready]
        return ready[:wanted] if len(ready) >= wanted else ()

    def evict(self, groups: Iterable[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
        """Give up none."""
        del groups, version
        return ()

    def interrupt(self, groups: Iterable[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
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

    def select(self, groups: Iterable[Group], *, wanted: int, most: int, version: WeightVersion) -> Sequence[LeaseId]:
        """Take the ready groups that are due first, unless one that still runs has to come first."""
        in_turn = sorted(groups, key=lambda group: (group.version, group.number))
        ready = [group for group in in_turn if group.ready][:most]
        if len(ready) < wanted:
            return ()
        size = len(ready)
        for size in range(wanted, len(ready) + 1):  # what is due may be more than what the batch wants
            taken = {group.number for group in ready[:size]}
            if self._in_time([group for group in in_turn if group.number not in taken], version + 1):
                break
        else:
            if self._in_time(in_turn[:most], version) and self._in_time(in_turn[most:], version + 1):
                return ()
        chosen = {group.lease_id for group in ready[:size]}
        return [group.lease_id for group in groups if group.lease_id in chosen]

    def _in_time(self, in_turn: Sequence[Group], version: int) -> bool:
        """Return whether all can be trained in time, from ``version`` on a batch of them at a step."""
        latest = math.ceil(self.max_age)
        return all(group.version + latest >= version + place // self.batch for place, group in enumerate(in_turn))


@dataclass(frozen=True)
class Drop(Loose):
    """Gives up what is over age when it could be trained, and has it replaced."""

    max_age: float

    def select(self, groups: Iterable[Group], *, wanted: int, most: int, version: WeightVersion) -> Sequence[LeaseId]:
        """Take the oldest ready groups that are not over age."""
        return super().select(_fresh(groups, self.max_age, version), wanted=wanted, most=most, version=version)

    def evict(self, groups: Iterable[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
        """Give up those over age."""
        return [group.lease_id for group in _over_age(groups, self.max_age, version) if group.ready]


@dataclass(frozen=True)
class Partial(Loose):
    """Lets groups go on under new weights, and begins those anew whose oldest token would be over age."""

    max_age: float

    def select(self, groups: Iterable[Group], *, wanted: int, most: int, version: WeightVersion) -> Sequence[LeaseId]:
        """Take the oldest ready groups that are not over age."""
        return super().select(_fresh(groups, self.max_age, version), wanted=wanted, most=most, version=version)

    def interrupt(self, groups: Iterable[Group], *, version: WeightVersion) -> Sequence[LeaseId]:
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

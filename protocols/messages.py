"""The base of every message, and the names that identify work."""

from typing import NewType

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A frozen value that crosses a port; it encodes to MessagePack and decodes to an equal value.

    Bulk data (tokens, tensors) does not travel in messages but by ``PayloadRef``. What can be encoded holds no
    cycle, so messages are hidden from the garbage collector (a million of them took 5 s to collect in vain).
    Subclasses repeat ``frozen=True, kw_only=True``: type checkers inherit neither.
    """


WeightVersion = NewType("WeightVersion", int)
"""The optimizer step of a policy: 0 before training, strictly increasing, never reused."""

LeaseId = NewType("LeaseId", str)
"""``L`` and the admission number of a group, from 0: ``L17``."""


def lease_number(lease_id: LeaseId) -> int:
    """Return the admission number in ``L17``."""
    return int(lease_id[1:])


DispatchId = NewType("DispatchId", str)
"""``D`` and the number of a batch, from 0: ``D4``."""

WorkerId = NewType("WorkerId", str)
"""A launched workload: role and instance, ``rollout/0``."""


class RegistrationKey(Message, frozen=True, kw_only=True):
    """One tenant of the engines: a name, and which registration of that name it is.

    A name that is registered again is another tenant, so a late request of the first finds nothing.

    Attributes:
        name: Of the policy that the engines serve.
        registration_id: Which registration of that name, from 1.
    """

    name: str = "policy"
    registration_id: int = 1

    @property
    def prefix(self) -> str:
        """The prefix of every request id of this registration, ``policy.1/``."""
        return f"{self.name}.{self.registration_id}/"


def attempt_prefix(registration: RegistrationKey, lease_id: LeaseId, attempt: int) -> str:
    """Return the prefix shared by the requests of one attempt, ``policy.1/L17/0/``."""
    return f"{registration.prefix}{lease_id}/{attempt}/"


def request_id(prefix: str, sample: int, turn: int = 0) -> str:
    """Return ``registration/lease/attempt/sample/turn`` for an ``attempt_prefix``."""
    return f"{prefix}{sample}/{turn}"


def stream_name(seed: int, position: int, sample: int, turn: int = 0) -> str:
    """Name the random stream of one turn of one sample.

    It holds neither lease nor attempt: a readmitted group draws the same tokens.

    Args:
        seed: Seed of the run.
        position: ``Prompt.position``.
        sample: Index in the group.
        turn: Index in the conversation.
    """
    return f"{seed}/{position}/{sample}/{turn}"


class PayloadRef(Message, frozen=True, kw_only=True):
    """Where bulk data lies. ``owner`` says whose it is: all of an owner's payloads are released together."""

    owner: str
    key: str

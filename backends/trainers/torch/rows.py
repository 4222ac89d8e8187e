"""The samples of a batch: who they are is checked before anything is computed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocols.errors import InvariantError, PayloadLost
from protocols.messages import attempt_prefix
from protocols.rollouts import GroupPayload
from protocols.training import BatchLease, GroupRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One sample that takes part in the loss.

    Attributes:
        prompt: Token ids, at least one.
        completion: Token ids, at least one.
        behaviour: Log-probabilities of ``completion`` when it was drawn.
        advantage: Of each of its tokens.
        reward: Of the whole sample.
        weight: Of each of its tokens, above 0.
        temperature: It was drawn at, above 0.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    behaviour: tuple[float, ...]
    advantage: float
    reward: float
    weight: float
    temperature: float


def check_identities(batch: BatchLease) -> None:
    """Check that a batch names no lease, payload or sample twice and no payload of another attempt.

    Raises:
        InvariantError: It does.
    """
    _check_unique(batch, "lease", (group.lease_id for group in batch.groups))
    _check_unique(batch, "payload", ((group.payload.owner, group.payload.key) for group in batch.groups))
    for group in batch.groups:
        _check_unique(batch, f"sample of {group.lease_id}", (row.sample for row in group.samples))
        prefix = attempt_prefix(batch.registration, group.lease_id, group.attempt)
        if group.payload.owner != prefix:
            raise InvariantError(f"{batch.dispatch_id} binds {prefix} to a payload of {group.payload.owner}")


def _check_unique(batch: BatchLease, what: str, names: Iterable[object]) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise InvariantError(f"{batch.dispatch_id} names {what} {name} twice")
        seen.add(name)


def trained_groups(batch: BatchLease, payloads: Sequence[Any]) -> list[list[Row]]:
    """Return, group by group, the samples that take part: those of a weight above 0 with at least one token.

    Args:
        batch: Its groups.
        payloads: What the payload store holds for each, in the same order; None for those that another rank trains.

    Raises:
        PayloadLost: A payload is no group's, or does not hold what the batch says.
    """
    groups: list[list[Row]] = []
    for group, payload in zip(batch.groups, payloads, strict=True):
        if payload is None:
            groups.append([])
            continue
        if isinstance(payload, Mapping) or not isinstance(payload, GroupPayload) or not payload.prompt_ids:
            raise PayloadLost(owner=group.payload.owner, cause="it is no group with a prompt")
        groups.append(list(_group_rows(group, payload)))
    return groups


def _group_rows(group: GroupRow, payload: GroupPayload) -> Iterator[Row]:
    for row in group.samples:
        if not 0 <= row.sample < len(payload.samples):
            raise PayloadLost(owner=group.payload.owner, cause=f"it has no sample {row.sample}")
        sample = payload.samples[row.sample]
        if len(sample.logprobs) != len(sample.token_ids):
            cause = f"its sample {row.sample} has log-probabilities for other tokens"
            raise PayloadLost(owner=group.payload.owner, cause=cause)
        if row.weight > 0 and sample.token_ids:
            yield Row(
                prompt=payload.prompt_ids,
                completion=sample.token_ids,
                behaviour=sample.logprobs,
                advantage=row.advantage,
                reward=row.reward,
                weight=row.weight,
                temperature=payload.temperature or 1.0,
            )

"""Batches for a trainer, with the payloads that they name, and a model small enough to train in tests."""

from collections.abc import Sequence
from typing import NamedTuple

from protocols.backend import PayloadPort
from protocols.messages import DispatchId, LeaseId, PayloadRef, RegistrationKey, WeightVersion, attempt_prefix
from protocols.rollouts import GroupPayload, SamplePayload
from protocols.sections import Section, Site
from protocols.training import BatchLease, GroupRow, SampleRow

VOCABULARY = 12
GPT2 = Section(
    kind="scratch",
    options={
        "architecture": "gpt2",
        "config": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "initializer_range": 0.3},
        "vocabulary": "0123456789+.",
        "end": ".",
    },
)
LLAMA = Section(
    kind="scratch",
    options={
        "architecture": "llama",
        "config": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            "initializer_range": 0.3,
            "tie_word_embeddings": True,
        },
        "vocabulary": "0123456789+.",
        "end": ".",
    },
)


def site(model: Section = GPT2) -> Site:
    """Return a site whose model is small."""
    return Site(job_dir="/", seed=3, model=model)


class Drawn(NamedTuple):
    """One sample and what the controller made of it; ``logprobs`` where tokens were not all drawn with ``logprob``."""

    tokens: tuple[int, ...]
    advantage: float = 1.0
    weight: float = 1.0
    logprob: float = -2.0
    reward: float = 0.0
    logprobs: tuple[float, ...] | None = None


class Group(NamedTuple):
    """One prompt and its samples."""

    prompt: tuple[int, ...]
    samples: Sequence[Drawn]
    temperature: float = 1.0


class Batch(NamedTuple):
    """A lease and, in its order, the payloads that it names."""

    lease: BatchLease
    payloads: Sequence[GroupPayload]

    async def store(self, store: PayloadPort) -> BatchLease:
        """Put the payloads where the lease says they are."""
        for group, payload in zip(self.lease.groups, self.payloads, strict=True):
            await store.put(group.payload, payload)
        return self.lease


EXAMPLE = (
    Group((1, 2, 3), [Drawn((3, 2, 1, 11), 1.0), Drawn((4, 11), -1.0), Drawn((5, 5, 5, 5, 5, 5), 0.5)]),
    Group((7,), [Drawn((7, 7), -0.5), Drawn((8, 9, 11), 2.0), Drawn((), 1.0)]),
)


def make_batch(
    groups: Sequence[Group] = EXAMPLE,
    *,
    dispatch: int = 0,
    version: int = 0,
    registration: RegistrationKey | None = None,
) -> Batch:
    """Lend ``groups`` for one step."""
    registration = registration or RegistrationKey()
    rows = [_group_row(registration, LeaseId(f"L{index}"), group) for index, group in enumerate(groups)]
    lease = BatchLease(
        dispatch_id=DispatchId(f"D{dispatch}"),
        registration=registration,
        version=WeightVersion(version),
        groups=tuple(rows),
    )
    return Batch(lease, [_payload(group) for group in groups])


def _group_row(registration: RegistrationKey, lease_id: LeaseId, group: Group) -> GroupRow:
    samples = (
        SampleRow(sample=index, advantage=drawn.advantage, reward=drawn.reward, weight=drawn.weight)
        for index, drawn in enumerate(group.samples)
    )
    owner = attempt_prefix(registration, lease_id, 0)
    return GroupRow(lease_id=lease_id, attempt=0, payload=PayloadRef(owner=owner, key="group"), samples=tuple(samples))


def _payload(group: Group) -> GroupPayload:
    samples = (
        SamplePayload(token_ids=drawn.tokens, logprobs=drawn.logprobs or (drawn.logprob,) * len(drawn.tokens), text="")
        for drawn in group.samples
    )
    return GroupPayload(prompt_ids=group.prompt, prompt_text="", temperature=group.temperature, samples=tuple(samples))

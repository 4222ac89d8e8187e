"""The generators of reasoning-gym and their verifiers. The package is heavy: imported only where it is needed."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import reasoning_gym  # pyright: ignore[reportMissingImports] - an extra
from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]
from reasoning_gym.utils import extract_answer  # pyright: ignore[reportMissingImports]


def known_datasets() -> tuple[str, ...]:
    """Return the names of all generators, in alphabetical order."""
    return tuple(sorted(DATASETS))


def known_options(dataset: str) -> tuple[str, ...]:
    """Return the names of a generator's options."""
    return tuple(field.name for field in dataclasses.fields(DATASETS[dataset][1]))


def create(dataset: str, config: Mapping[str, Any], *, seed: int, size: int) -> Any:
    """Return the generator: it makes task ``index`` out of ``seed + index`` when it is indexed.

    Raises:
        Exception: Whatever it checks its options with (AssertionError, TypeError, ValueError).
    """
    return reasoning_gym.create_dataset(dataset, **config, seed=seed, size=size)


def task_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``question``, ``answer`` and ``metadata`` of a generated task as values that a message can carry."""
    return msgspec.to_builtins(dict(entry), str_keys=False, enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} fits in no message")


def score(
    *, completion: str, dataset: str, config: dict[str, Any], question: str, answer: Any, metadata: dict[str, Any]
) -> float:
    """Return what the generator's own verifier gives for a completion, from 0 to 1.

    Judged is what stands in the last ``<answer>`` of the completion; where there is none, all of it.
    """
    verifier = _verifier(dataset, msgspec.msgpack.encode(config))
    said = extract_answer(completion)
    entry = {"question": question, "answer": answer, "metadata": metadata}
    return float(verifier.score_answer(completion.strip() if said is None else said, entry))


@functools.lru_cache(maxsize=8)
def _verifier(dataset: str, config: bytes) -> Any:
    return create(dataset, msgspec.msgpack.decode(config), seed=0, size=1)

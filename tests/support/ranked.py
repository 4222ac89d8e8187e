"""Learners that train together, each in a process of its own: a process has one place among ranks at a time."""

import os
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from typing import Any, NamedTuple

import msgspec
import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from backends.trainers.torch import Config
from backends.trainers.torch.learner import Learner
from backends.trainers.torch.models import load_models
from backends.trainers.torch.ranks import Ranks
from backends.trainers.torch.trainer import layout_of
from protocols.training import JoinRequest
from tests.support.batches import Drawn, Group, make_batch, site

WORLD = 2
GROUPS = [
    Group((1, 2, 3), [Drawn((3, 2, 1, 11), 1.0, reward=1.0), Drawn((4, 11), -1.0), Drawn((5, 5, 5, 5), 0.5)]),
    Group((7,), [Drawn((7, 7), -0.5, reward=0.5), Drawn((8, 9, 11), 2.0, reward=1.0)]),
    Group((8, 8), [Drawn((1,), 0.25), Drawn((2, 3, 4, 5, 6), -0.25, reward=0.25)]),
]
"""Three: two ranks have shares of different sizes."""

_WAIT_S = 60.0


class Trained(NamedTuple):
    """What a learner came to.

    Attributes:
        metrics: Of each step.
        values: All parameters of the policy, and of the critic where there is one.
    """

    metrics: list[dict[str, float]]
    values: list[float]


def train(options: dict[str, Any], *, steps: int, groups: int = len(GROUPS)) -> Trained:
    """Train on the first of ``GROUPS``, in one process."""
    return _trained(_learner(options, Ranks(0.0), seed=3), steps, groups)


def train_together(jobs: dict[str, dict[str, Any]], *, steps: int) -> list[dict[str, Trained]]:
    """Train every job on all ranks; returns by rank what each came to."""
    return _on_all_ranks(_train_all, jobs, steps)


def train_and_hand_over(options: dict[str, Any]) -> list[Trained]:
    """Two steps of rank 0 alone, a meeting with a rank 1 that has made none, one step together; by rank."""
    return _on_all_ranks(_one_comes_late, options)


def _on_all_ranks(function: Any, *args: Any) -> list[Any]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_WAIT_S))
    with ProcessPoolExecutor(WORLD, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        asked = [pool.submit(function, rank, f"127.0.0.1:{store.port}", *args) for rank in range(WORLD)]
        return [each.result(timeout=2 * _WAIT_S) for each in asked]


def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def _train_all(rank: int, address: str, jobs: dict[str, dict[str, Any]], steps: int) -> dict[str, Trained]:
    ranks = Ranks(_WAIT_S)
    learners = {name: _learner(options, ranks, seed=3) for name, options in jobs.items()}
    for learner in learners.values():
        learner.place(rank, WORLD)
    join(ranks, rank, address)
    for learner in learners.values():
        learner.take_over(0)
    return {name: _trained(learner, steps, len(GROUPS)) for name, learner in learners.items()}


def join(ranks: Ranks, rank: int, address: str, generation: int = 1) -> None:
    """Have a rank meet the others."""
    request = JoinRequest(generation=generation, rank=rank, world=WORLD, source=0, address=address)
    ranks.join(request, torch.device("cpu"))


def _one_comes_late(rank: int, address: str, options: dict[str, Any]) -> Trained:
    ranks = Ranks(_WAIT_S)
    learner = _learner(options, ranks, seed=3 + rank)  # other parameters than rank 0's
    if rank == 0:
        for _ in range(2):
            _step(learner, len(GROUPS))
    join(ranks, rank, address)
    learner.take_over(0)
    return _trained(learner, 1, len(GROUPS))


def _learner(options: dict[str, Any], ranks: Ranks, seed: int) -> Learner:
    place = msgspec.structs.replace(site(), seed=seed, steps=10, max_tokens=8)
    cfg = Config(**{"lr": 1e-2, "eps": 1e-3, **options})  # a smaller eps makes a step of noise where gradients are 0
    return Learner(load_models(place, cfg), cfg, site=place, interrupt=lambda: None, layout=layout_of(cfg, ranks))


def _trained(learner: Learner, steps: int, groups: int) -> Trained:
    return Trained([_step(learner, groups) for _ in range(steps)], _values(learner))


def _step(learner: Learner, groups: int) -> dict[str, float]:
    batch = make_batch(GROUPS[:groups], dispatch=learner.version, version=learner.version)
    payloads = [payload if learner.layout.ranks.owns(index) else None for index, payload in enumerate(batch.payloads)]
    return learner.train_step(batch.lease, payloads).metrics


def _values(learner: Learner) -> list[float]:
    return [
        value
        for stepper in learner.steppers.values()
        for tensor in learner.layout.copies(dict(stepper.module.named_parameters())).values()
        for value in tensor.flatten().tolist()
    ]

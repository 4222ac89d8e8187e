"""Learners that train together, each in a process of its own: a process has one place among ranks at a time."""

import os
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
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
from protocols.sections import Section
from protocols.training import JoinRequest
from tests.support.batches import GPT2, Drawn, Group, make_batch, site

OnAllRanks = Callable[..., list[Any]]
"""Calls a function with a ``Ranks``, a rank, the address to meet at, and arguments, on each; returns by rank."""

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
        values: All parameters of the policy, and of the critic where there is one; of ranks with parts, the first has
            them all, and the others none.
    """

    metrics: list[dict[str, float]]
    values: list[float]


def train(options: dict[str, Any], *, steps: int, model: Section = GPT2) -> Trained:
    """Train on ``GROUPS``, in one process."""
    return go_on(make_learner(options, Ranks(0.0), model=model), steps)


@contextmanager
def open_ranks() -> Generator[OnAllRanks]:
    """Start a process for each rank, which loads torch once, whatever is called there."""
    with ProcessPoolExecutor(WORLD, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        yield partial(_on_all, pool)


def train_together(
    jobs: dict[str, dict[str, Any]], *, steps: int, on_all: OnAllRanks, model: Section = GPT2
) -> list[dict[str, Trained]]:
    """Train every job on all ranks; returns by rank what each came to."""
    return on_all(_train_all, jobs, steps, model)


def train_and_hand_over(options: dict[str, Any], on_all: OnAllRanks) -> list[Trained]:
    """Two steps of rank 0 alone, a meeting with a rank 1 that has made none, one step together; by rank."""
    return on_all(_one_comes_late, options)


def meet(learners: list[Learner], rank: int, address: str, generation: int = 1) -> None:
    """Have the learners of a rank, which have one ``Ranks``, meet those of the others."""
    for learner in learners:
        learner.place(rank, WORLD)
    request = JoinRequest(generation=generation, rank=rank, world=WORLD, source=0, address=address)
    learners[0].layout.ranks.join(request, torch.device("cpu"))
    for learner in learners:
        learner.take_over(0)


def make_learner(
    options: dict[str, Any],
    ranks: Ranks,
    *,
    seed: int = 3,
    model: Section = GPT2,
    interrupt: Callable[[], None] = lambda: None,
) -> Learner:
    """Open a learner, which has met nobody."""
    place = msgspec.structs.replace(site(model), seed=seed, steps=10, max_tokens=8)
    cfg = Config(**{"lr": 1e-2, "eps": 1e-3, **options})  # a smaller eps makes a step of noise where gradients are 0
    return Learner(load_models(place, cfg), cfg, site=place, interrupt=interrupt, layout=layout_of(cfg, ranks))


def go_on(learner: Learner, steps: int) -> Trained:
    """Make some steps."""
    return Trained([step(learner) for _ in range(steps)], values(learner))


def step(learner: Learner) -> dict[str, float]:
    """Train on this rank's share of ``GROUPS``."""
    batch = make_batch(GROUPS, dispatch=learner.version, version=learner.version)
    payloads = [payload if learner.layout.ranks.owns(index) else None for index, payload in enumerate(batch.payloads)]
    return learner.train_step(batch.lease, payloads).metrics


def values(learner: Learner) -> list[float]:
    """Return all parameters."""
    return [
        value
        for stepper in learner.steppers.values()
        for tensor in learner.layout.copies(dict(stepper.module.named_parameters())).values()
        for value in tensor.flatten().tolist()
    ]


def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def _on_all(pool: ProcessPoolExecutor, function: Callable[..., Any], *args: Any) -> list[Any]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_WAIT_S))
    asked = [pool.submit(_as_rank, function, rank, f"127.0.0.1:{store.port}", *args) for rank in range(WORLD)]
    return [each.result(timeout=2 * _WAIT_S) for each in asked]


def _as_rank(function: Callable[..., Any], rank: int, address: str, *args: Any) -> Any:
    ranks = Ranks(_WAIT_S)
    try:
        return function(ranks, rank, address, *args)
    finally:
        ranks.leave()


def _train_all(
    ranks: Ranks, rank: int, address: str, jobs: dict[str, dict[str, Any]], steps: int, model: Section
) -> dict[str, Trained]:
    learners = {name: make_learner(options, ranks, model=model) for name, options in jobs.items()}
    meet(list(learners.values()), rank, address)
    return {name: go_on(learner, steps) for name, learner in learners.items()}


def _one_comes_late(ranks: Ranks, rank: int, address: str, options: dict[str, Any]) -> Trained:
    learner = make_learner(options, ranks, seed=3 + rank)  # other parameters than rank 0's
    if rank == 0:
        go_on(learner, 2)
    meet([learner], rank, address)
    return go_on(learner, 1)

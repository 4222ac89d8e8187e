"""How much memory does one of two ranks take, with replicated and with sharded parameters?

What is counted is the bytes of all tensors that there are after each of torch's operations, in two processes that train
a small model together. All numbers are multiples of the bytes of the model's parameters:

- ``held``: between two steps: parameters, gradients, the optimizer's two moments.
- ``step``: the most there was at once during a step.
- ``publish``: the same while weights are staged, and ``snapshot`` while a checkpoint is copied. The first rank keeps
  what it gathers.

    python -m benchmarks.bench_sharding
"""

import json
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from backends.models.loading import named_weights
from backends.trainers.torch import Config, checkpoint
from backends.trainers.torch.learner import Learner
from backends.trainers.torch.models import load_models
from backends.trainers.torch.options import Sharding
from backends.trainers.torch.probe import probe_of
from backends.trainers.torch.ranks import Ranks
from backends.trainers.torch.trainer import layout_of
from protocols.messages import DispatchId, LeaseId, PayloadRef, RegistrationKey, attempt_prefix
from protocols.rollouts import GroupPayload, SamplePayload
from protocols.sections import Section, Site
from protocols.training import BatchLease, GroupRow, JoinRequest, SampleRow

WORLD = 2
LAYERS = 8
WIDTH = 512
SHARDINGS: tuple[Sharding, ...] = ("no_shard", "full_shard")
_WAIT_S = 120.0


class Peaks(NamedTuple):
    """Of one rank, in bytes.

    Attributes:
        parameters: What all parameters of the model take.
        largest: What the largest one takes.
        held: After a step.
        step, publish, snapshot: The most while it lasted.
    """

    parameters: int
    largest: int
    held: int
    step: int
    publish: int
    snapshot: int


class _Count(TorchDispatchMode):
    """Counts the bytes of tensors after every operation; whatever makes any has to be done in ``during``."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._peak = 0

    def during(self, work: Callable[[], object]) -> int:
        """Return the most there was at once while ``work`` was done."""
        self._peak = self.held()
        with self:
            work()
        return self._peak

    def held(self) -> int:
        """Return what there is now."""
        living = {key: storage for key, ref in self._storages.items() if (storage := ref()) is not None}
        self._storages = {key: self._storages[key] for key in living}
        return sum(storage.nbytes() for storage in living.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                storage = (leaf.to_local() if isinstance(leaf, DTensor) else leaf).untyped_storage()
                self._storages[id(storage)] = weakref.ref(storage)
        self._peak = max(self._peak, self.held())
        return made


def measure(width: int) -> dict[Sharding, list[Peaks]]:
    """Train two steps on two ranks, stage weights, copy a checkpoint; returns what each rank took.

    Args:
        width: Of the model.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_WAIT_S))
    with ProcessPoolExecutor(WORLD, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        asked = [pool.submit(_rank, rank, f"127.0.0.1:{store.port}", width) for rank in range(WORLD)]
        ranks = [each.result(timeout=4 * _WAIT_S) for each in asked]
    return {sharding: [rank[sharding] for rank in ranks] for sharding in SHARDINGS}


def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def _rank(rank: int, address: str, width: int) -> dict[Sharding, Peaks]:
    ranks, found = Ranks(_WAIT_S), dict[Sharding, Peaks]()
    for generation, sharding in enumerate(SHARDINGS, start=1):
        request = JoinRequest(generation=generation, rank=rank, world=WORLD, source=0, address=address)
        found[sharding] = _peaks(sharding, ranks, request, width)
        ranks.leave()
    return found


def _peaks(sharding: Sharding, ranks: Ranks, request: JoinRequest, width: int) -> Peaks:
    cfg = Config(sharding=sharding, micro_batch_tokens=16)
    site = Site(job_dir="/", model=_model(width), steps=4, max_tokens=8)
    count, opened = _Count(), list[Learner]()
    count.during(lambda: opened.append(_open(cfg, site, ranks, request)))
    (learner,) = opened
    count.during(lambda: _step(learner))  # the first one makes the optimizer's state
    step, held = count.during(lambda: _step(learner)), count.held()
    publish = count.during(lambda: _publish(learner))
    snapshot = count.during(lambda: checkpoint.copy_of(learner))
    sizes = [parameter.numel() * parameter.element_size() for parameter in learner.module.parameters()]
    return Peaks(sum(sizes), max(sizes), held, step, publish, snapshot)


def _model(width: int) -> Section:
    config = {
        "hidden_size": width,
        "intermediate_size": 11 * width // 4,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    options = {"architecture": "llama", "vocabulary": "0123456789>.", "end": ".", "config": config}
    return Section(kind="scratch", options=options)


def _open(cfg: Config, site: Site, ranks: Ranks, request: JoinRequest) -> Learner:
    models, layout = load_models(site, cfg), layout_of(cfg, ranks)
    learner = Learner(models, cfg, site=site, interrupt=lambda: None, layout=layout)
    learner.place(request.rank, request.world)
    ranks.join(request, torch.device("cpu"))
    learner.take_over(request.source)
    return learner


def _publish(learner: Learner) -> None:
    probe_of(learner.module)
    learner.layout.copies(named_weights(learner.module))


def _step(learner: Learner) -> None:
    groups = [LeaseId(f"L{index}") for index in range(2 * WORLD)]
    payloads = [_payload() if learner.layout.ranks.owns(index) else None for index in range(len(groups))]
    lease = BatchLease(
        dispatch_id=DispatchId(f"D{learner.version}"),
        registration=RegistrationKey(),
        version=learner.version,
        groups=tuple(_group(lease_id) for lease_id in groups),
    )
    learner.train_step(lease, payloads)


def _group(lease_id: LeaseId) -> GroupRow:
    owner = attempt_prefix(RegistrationKey(), lease_id, 0)
    samples = tuple(SampleRow(sample=index, advantage=1.0 - 2 * index, reward=0.0) for index in range(2))
    return GroupRow(lease_id=lease_id, attempt=0, payload=PayloadRef(owner=owner, key="group"), samples=samples)


def _payload() -> GroupPayload:
    samples = tuple(SamplePayload(token_ids=(1, 2, 3), logprobs=(-2.0,) * 3, text="") for _ in range(2))
    return GroupPayload(prompt_ids=(4, 5, 6), prompt_text="", temperature=1.0, samples=samples)


def main() -> None:
    """Measure both and print them."""
    found = measure(WIDTH)
    size = found["no_shard"][0].parameters
    title = f"bytes of tensors over those of the parameters ({size / 2**20:.1f} MiB, {LAYERS} layers), 2 ranks"
    table = Table("sharding", "rank", *Peaks._fields[2:], title=title, title_justify="left")
    for sharding, ranks in found.items():
        for number, peaks in enumerate(ranks):
            table.add_row(sharding, str(number), *(f"{value / size:.2f}" for value in peaks[2:]))
    Console(width=100).print(table)
    whole, part = found["no_shard"][0], found["full_shard"][0]
    last = {"held": part.held / whole.held, "step": part.step / whole.step}
    print(json.dumps({f"{name}_of_replicated": round(value, 3) for name, value in last.items()}))


if __name__ == "__main__":
    main()

"""What one rank does to show that its node works: a product of matrices, and a sum over the ranks that are with it.

Both have a result that is known, so a device that computes wrongly is found as well. The exchange is over gloo, between
the hosts, whatever the device is.
"""

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

from backends.trainers.torch.ranks import Ranks
from protocols.errors import PeersLost, PortFailed
from protocols.training import CheckReport, CheckRequest

_SIDE = 512
_TENSOR_BYTES = 4 << 20
_TIMES = 3
"""The fastest of so many counts: the first one on a device loads what it needs, and others use the machine too."""


def check(request: CheckRequest, ranks: Ranks, device: torch.device) -> CheckReport:
    """Compute, and exchange with the others of a trial.

    Args:
        request: Who they are.
        ranks: Knows the store that this process offered, if it did.
        device: What to compute on.

    Raises:
        PeersLost: Some did not come, or went.
        PortFailed: A result is wrong.
    """
    compute_s = _fastest(lambda: _multiply(device))
    if request.world == 1:
        return CheckReport(compute_s=compute_s, exchange_s=0.0)
    try:
        return CheckReport(compute_s=compute_s, exchange_s=_exchange(request, ranks))
    except RuntimeError as exc:  # all that torch says when a peer is gone, or does not come
        raise PeersLost(f"rank {request.rank} of {request.world} lost the others: {exc}") from exc


def _exchange(request: CheckRequest, ranks: Ranks) -> float:
    patience = timedelta(seconds=request.patience_s)
    store = PrefixStore(f"check/{request.trial}", ranks.meeting_place(request.address))
    store.set_timeout(patience)
    group = dist.ProcessGroupGloo(store, request.rank, request.world, patience)

    def add_up() -> None:
        tensor = torch.full((_TENSOR_BYTES // 4,), float(request.rank + 1))
        group.allreduce([tensor]).wait()  # pyright: ignore[reportAttributeAccessIssue] - torch's stubs lack it
        _expect(tensor, request.world * (request.world + 1) / 2, "were added up")

    add_up()  # all are there when it ends
    return _fastest(add_up)


def _multiply(device: torch.device) -> None:
    ones = torch.ones(_SIDE, _SIDE, device=device)
    _expect(ones @ ones, float(_SIDE), "were multiplied")


def _expect(tensor: torch.Tensor, value: float, what: str) -> None:
    if wrong := int((tensor != value).sum()):
        raise PortFailed(f"{wrong} of {tensor.numel()} numbers that {what} are wrong")


def _fastest(act: Callable[[], None]) -> float:
    times: list[float] = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)

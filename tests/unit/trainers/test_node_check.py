"""What a rank does to show that its node works, over gloo; two ranks are two threads here."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from backends.trainers.torch import node_check
from backends.trainers.torch.ranks import Ranks, own_address
from protocols.errors import PeersLost, PortFailed
from protocols.training import CheckReport, CheckRequest

CPU = torch.device("cpu")
PATIENCE_S = 10.0


def request(rank: int, address: str, *, world: int = 2, trial: int = 1, patience_s: float = PATIENCE_S) -> CheckRequest:
    return CheckRequest(trial=trial, rank=rank, world=world, address=address, patience_s=patience_s)


@pytest.fixture(name="together")
def two_ranks() -> Callable[[int], list[CheckReport]]:
    first, second = Ranks(PATIENCE_S), Ranks(PATIENCE_S)

    def check(trial: int) -> list[CheckReport]:
        address = first.offer("127.0.0.1")
        with ThreadPoolExecutor(2) as threads:
            asked = [
                threads.submit(node_check.check, request(rank, address, trial=trial), ranks, CPU)
                for rank, ranks in enumerate((first, second))
            ]
            return [each.result(timeout=2 * PATIENCE_S) for each in asked]

    return check


def test_two_compute_and_exchange_again_and_again(together: Callable[[int], list[CheckReport]]) -> None:
    for trial in (1, 2):
        assert all(report.compute_s > 0 and report.exchange_s > 0 for report in together(trial))
    assert not torch.distributed.is_initialized(), "the ranks' own meeting is left alone"


def test_one_alone_computes() -> None:
    report = node_check.check(request(0, "", world=1), Ranks(PATIENCE_S), CPU)
    assert report.compute_s > 0
    assert report.exchange_s == 0.0


def test_who_does_not_come_is_not_waited_for_longer_than_was_said() -> None:
    ranks = Ranks(PATIENCE_S)
    address = ranks.offer("127.0.0.1")
    with pytest.raises(PeersLost, match="rank 0 of 2"):
        node_check.check(request(0, address, patience_s=0.5), ranks, CPU)


def test_a_device_that_computes_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent corruption fails no call: only a result that is known shows it."""
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda one, other: one * 0.0)
    with pytest.raises(PortFailed, match="262144 of 262144 numbers that were multiplied are wrong"):
        node_check.check(request(0, "", world=1), Ranks(PATIENCE_S), CPU)


def test_a_machine_knows_an_address_of_its_own() -> None:
    ranks = Ranks(PATIENCE_S)
    assert ranks.offer("").startswith(f"{own_address()}:")

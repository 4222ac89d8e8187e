"""Publishing in whole runs: requests that are outstanding in every mode, and what must be kept while it is loaded."""

from typing import get_args

import anyio
import pytest

from backends.ledgers.memory import MemoryLedger
from conductor.config import RunConfig
from conductor.simulation.laws import broken
from conductor.simulation.life import Life, in_simulation, live
from protocols.faults import FaultPlan
from protocols.inference import PublishMode, PublishReceipt, Sampling, WeightsManifest
from protocols.ledger import Graded, Stepped
from tests.support.runs import run_config, run_scripted
from tests.support.scripted.workloads import scripted_workloads

WORLD = {"sample": "lognormal:1.0", "slots": 3, "publish": "2.0", "train": "0.5"}
"""Engines that are always full: a publish never meets one that is idle by chance."""


def life_of(mode: PublishMode, max_age: int) -> Life:
    cfg = RunConfig(
        steps=12,
        batch_groups=2,
        group_size=2,
        max_age=max_age,
        engines=2,
        publish=mode,
        sampling=Sampling(max_tokens=1),
    )
    return live(in_simulation(cfg, WORLD))


def versions_of_samples(life: Life) -> list[int]:
    """Return of how many versions the tokens of each sample are."""
    receipts = [event.receipt for event in life.events if isinstance(event, Graded)]
    return [len(sample.segments) for receipt in receipts for sample in receipt.samples]


@pytest.mark.parametrize("max_age", [0, 1, 4])
@pytest.mark.parametrize("mode", get_args(PublishMode))
def test_outstanding_requests_and_a_publish_never_wait_for_each_other(mode: PublishMode, max_age: int) -> None:
    """I21, I23: the update waited for idle engines, their clients for the update, and new work kept them busy."""
    life = life_of(mode, max_age)
    assert life.error is None
    assert life.result is not None
    assert life.result.steps == 12
    assert broken(life, FaultPlan()) == ()


def test_a_drained_publish_splits_no_sample_and_the_others_do() -> None:
    """I23: admission is closed before the drain, so it ends; and requests do meet publishes in the test above."""
    assert max(versions_of_samples(life_of("drain", 4))) == 1
    assert max(versions_of_samples(life_of("interrupt", 4))) > 1
    assert max(versions_of_samples(life_of("inflight", 4))) > 1


async def test_weights_are_kept_for_as_long_as_engines_load_them() -> None:
    """W19: buffers were freed while a peer still read them. Here they are overtaken in the middle of each load."""
    scripted = scripted_workloads(200, step_s=1.0)
    loaded: list[int] = []
    publish = scripted.inference.publish

    async def slowly(manifest: WeightsManifest) -> PublishReceipt:
        for _ in range(5):
            await scripted.payloads.get(manifest.payload)  # an engine that reads piece by piece
            await anyio.sleep(1.0)
        loaded.append(manifest.version)
        return await publish(manifest)

    scripted.inference.publish = slowly
    result = await run_scripted(run_config(steps=20, max_age=6), scripted)
    assert result.steps == 20
    assert len(loaded) < 21, "no version was overtaken: nothing was tested"
    assert not scripted.payloads.held


async def test_the_record_says_when_weights_were_published() -> None:
    """Issue H: where the time of a step went is read from the record; the first one is over when its clock begins."""
    ledger = MemoryLedger()
    await run_scripted(run_config(steps=3), scripted_workloads(100, publish_s=0.5), ledger)
    spans = [event.publishes for event in ledger._events if isinstance(event, Stepped)]
    assert [len(one) for one in spans] == [1, 1, 1]
    assert [ended - began for ((began, ended),) in spans] == pytest.approx([0.0, 0.5, 0.5], abs=0.01)

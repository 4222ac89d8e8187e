"""Whole runs of the real controller over scripted workloads."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from backends.inproc import Config
from backends.inproc import open as open_inproc
from backends.ledgers.memory import MemoryLedger
from conductor.conductor import Conductor
from conductor.config import RunConfig
from conductor.ports import Workloads
from conductor.result import RunResult
from protocols.backend import Backend
from protocols.inference import Sampling
from protocols.sections import Site
from tests.support.scripted.workloads import ScriptedWorkloads


def run_config(**fields: Any) -> RunConfig:
    """Return a small job without adapters: 2 steps of 2 groups of 2 samples, unless ``fields`` say otherwise."""
    base = RunConfig(
        steps=2,
        batch_groups=2,
        group_size=2,
        sampling=Sampling(max_tokens=4),
        lag_interval_s=0.0,
        freeze_gc=False,
        trackers=(),
    )
    return msgspec.structs.replace(base, **fields)


@asynccontextmanager
async def open_backend_over(scripted: ScriptedWorkloads) -> AsyncGenerator[Backend]:
    """Open the in-process backend with the payload store that the scripted workloads share."""
    async with open_inproc(Config(), Site(job_dir=".")) as backend:
        yield Backend(placement=backend.placement, launcher=backend.launcher, payloads=scripted.payloads)


def workloads_of(scripted: ScriptedWorkloads, ledger: MemoryLedger | None = None) -> Workloads:
    """Return scripted workloads as the controller takes them."""
    return Workloads(
        prompts=scripted.prompts,
        executor=scripted.executor,
        inference=scripted.inference,
        grader=scripted.grader,
        trainer=scripted.trainer,
        ledger=ledger or MemoryLedger(),
        trackers=(),
    )


async def run_scripted(cfg: RunConfig, scripted: ScriptedWorkloads, ledger: MemoryLedger | None = None) -> RunResult:
    """Run the real controller over scripted workloads."""
    async with open_backend_over(scripted) as backend:
        return await Conductor.run(cfg, backend=backend, workloads=workloads_of(scripted, ledger))

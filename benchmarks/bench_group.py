"""How long does a group of processes take to start, to answer, to stop, and to replace one that was killed?

- ``start_8_s``: 8 workers with an engine that computes nothing, launched at once, until all are ready. Beside it
  what 8 bare interpreters take that import what a worker imports, and nothing else.
- ``call_all_ms``: one call to each of them at once, until the last answer: the median of many.
- ``stop_8_s``: until the last of them has ended.
- ``failover_s``: from SIGKILL of the only engine to the end of the first request that a new one answered: noticed,
  ended, launched, given the weights. With the engine that computes nothing, and with a small model on torch, which
  is the one in the last line; beside it the start of one such engine.

    python -m benchmarks.bench_group [--rounds 3]
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog
from rich.console import Console
from rich.table import Table

from backends import processes
from backends.engines.pool import open_pool
from conductor.fleet.failover import Failover
from conductor.fleet.group import WorkerGroup, open_group
from conductor.fleet.journal import Journal
from protocols.backend import Backend, Ranks, Resources
from protocols.errors import WorkerLost
from protocols.fleet import PlannedRole, Restarts, Vertex
from protocols.incidents import Incident, Scaled
from protocols.inference import EnginePort, GenerateRequest, SampleRequest, Sampling, WeightsManifest
from protocols.messages import PayloadRef, WeightVersion, WorkerId
from protocols.sections import Section, Site
from protocols.wire import client

WORKERS = 8
CALLS = 200
MODEL = Section(
    kind="scratch",
    options={
        "architecture": "gpt2",
        "vocabulary": "0123456789>",
        "config": {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 32},
    },
)
INSTANT = Section(kind="benchmarks._instant_engine:ADAPTER")
TORCH = Section(kind="torch", options={"slots": 8, "threads": 1})
SITE = Site(job_dir=str(Path.cwd()), model=MODEL)
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
_START_S = 300.0
_STOP_S = 60.0


def vertices(count: int, adapter: Section) -> tuple[Vertex, ...]:
    """Return so many engines, bound to no CPU."""
    return tuple(
        Vertex(
            name=WorkerId(f"rollout/{number}"),
            role="rollout",
            section="engine",
            adapter=adapter,
            environment=ENVIRONMENT,
            ranks=Ranks(world=number, role=number, node=0, local=number),
            node="local",
            domain="local",
            device="cpu",
            devices=(),
            cpus=(),
            bundle=f"rollout/{number}",
        )
        for number in range(count)
    )


@asynccontextmanager
async def open_engines(count: int, adapter: Section) -> AsyncGenerator[tuple[Backend, WorkerGroup]]:
    """Open a backend of processes with so many engines."""
    async with processes.open(processes.Config(), SITE) as backend:
        opened = open_group(
            vertices(count, adapter), backend.launcher, SITE, start_s=_START_S, stop_s=_STOP_S, at_once=True
        )
        async with opened as group:
            yield backend, group


async def measure_group() -> dict[str, float]:
    """Start a group, call all of it, stop it."""
    began = started = stopping = time.perf_counter()
    calls: list[float] = []
    async with open_engines(WORKERS, INSTANT) as (_, group):
        started = time.perf_counter()
        for _ in range(CALLS):
            before = time.perf_counter()
            await group.calls.all("status")
            calls.append(time.perf_counter() - before)
        stopping = time.perf_counter()
    return {
        "start_8_s": started - began,
        "call_all_ms": 1000 * statistics.median(calls),
        "stop_8_s": time.perf_counter() - stopping,
    }


def measure_interpreters() -> float:
    """Return how long so many bare interpreters take to import what a worker imports, all at once."""
    command = [sys.executable, "-P", "-c", "import backends.processes.worker, benchmarks._instant_engine"]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    began = time.perf_counter()
    started = [subprocess.Popen(command, env=environment) for _ in range(WORKERS)]  # noqa: S603 - our own
    for one in started:
        one.wait()
    return time.perf_counter() - began


async def measure_failover(adapter: Section) -> dict[str, float]:
    """Kill the only engine and wait for the first rollout of the next one."""
    role = PlannedRole(
        name="rollout", instances=1, resources=Resources(), strategy="pack", restarts=Restarts(worker=1000)
    )
    began = started = killed = answered = time.perf_counter()
    async with open_engines(1, adapter) as (backend, group), anyio.create_task_group() as tasks:
        started = time.perf_counter()
        (member,) = group.members
        failover = Failover(role, group)

        async def send(method: str, args: tuple[Any, ...]) -> Any:
            try:
                return await backend.launcher.call(member, method, args)
            except WorkerLost:
                failover.suspect(member)
                raise

        async with open_pool({member: client(EnginePort, send)}) as pool:
            failover.replaced = pool.replaced
            tasks.start_soon(failover.run, _journal())
            await pool.publish(await _weights(backend))
            await pool.generate(_request(0))
            (state,) = (await backend.launcher.poll()).values()
            assert state.pid is not None
            killed = time.perf_counter()
            os.kill(state.pid, signal.SIGKILL)
            for attempt in range(1, 100):
                with suppress(WorkerLost):
                    await pool.generate(_request(attempt))
                    break
            answered = time.perf_counter()
        tasks.cancel_scope.cancel()
    return {"failover_s": answered - killed, "start_1_s": started - began}


def _journal() -> Journal:
    async def record(event: Incident | Scaled) -> None:
        del event
        await anyio.lowlevel.checkpoint()

    return Journal(trained=lambda: WeightVersion(0), record=record, log=structlog.get_logger())


async def _weights(backend: Backend) -> WeightsManifest:
    """Put the weights of the model that the engine on torch serves; the other one looks at none."""
    from backends.models.loading import load_module, named_weights  # noqa: PLC0415 - only here is torch needed

    weights = named_weights(load_module(SITE))
    ref = PayloadRef(owner="weights", key="v0")
    await backend.payloads.put(ref, weights)
    size_bytes = sum(one.nbytes for one in weights.values())
    return WeightsManifest(version=WeightVersion(0), payload=ref, tensors=len(weights), size_bytes=size_bytes)


def _request(number: int) -> GenerateRequest:
    sample = SampleRequest(request_id=f"policy.1/L{number}/0/0/0", stream=f"0/{number}/0/0")
    return GenerateRequest(prompt_ids=(1, 2, 3), samples=(sample,), sampling=Sampling(max_tokens=4))


def main(rounds: int) -> None:
    """Measure and print; of several rounds the median."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    groups = [anyio.run(measure_group) for _ in range(rounds)]
    bare = statistics.median(measure_interpreters() for _ in range(rounds))
    found = {name: statistics.median(one[name] for one in groups) for name in groups[0]}
    instant, torch = ([anyio.run(partial(measure_failover, kind)) for _ in range(rounds)] for kind in (INSTANT, TORCH))
    rows = [
        (f"start of {WORKERS} processes", f"{found['start_8_s']:.2f} s", f"bare interpreters: {bare:.2f} s"),
        (f"a call to all {WORKERS}", f"{found['call_all_ms']:.2f} ms", ""),
        (f"end of {WORKERS} processes", f"{found['stop_8_s']:.2f} s", ""),
    ]
    for name, many in (("computes nothing", instant), ("runs torch", torch)):
        failover, start = (statistics.median(one[key] for one in many) for key in ("failover_s", "start_1_s"))
        rows.append((f"failover of an engine that {name}", f"{failover:.2f} s", f"its first start: {start:.2f} s"))
    table = Table("what", "took", "beside", title=f"medians of {rounds} rounds", title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=100).print(table)
    last = {"start_8_s": found["start_8_s"], "call_all_ms": found["call_all_ms"], "failover_s": failover}
    print(json.dumps({name: round(value, 3) for name, value in last.items()}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    main(parser.parse_args().rounds)

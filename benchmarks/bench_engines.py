"""How fast do engines generate, what does the way over HTTP cost, and what does it cost to publish weights?

- ``vs_transformers_generate``: tokens a second that the torch engine makes of 16 requests at once, beside
  ``generate`` of transformers with the 16 prompts as one batch. In the table also 1 and 64 requests, and the continuous
  batching of transformers.
- ``vs_vllm_cpu_16``: the same beside a vLLM server on the CPU, over HTTP; null where there is none.
- ``publish_file_vs_copy``: how long a server of ``conductor engine`` takes to come to serve new weights, beside writing
  the same bytes to a file and reading them back. Publishing also adds up checksums, stands still, binds, and asks for
  the probe. In the table also the vLLM server, and both given their weights by gloo.

Beside the first, the same of the torch engine and of ``generate`` in seconds of CPU time, which other work on the
machine changes little. Prompts are equally long and different, and every completion has as many tokens. Each side
computes with one thread. Sides take turns in one run; figures are medians. What HTTP costs is seen in the torch engine
through ``conductor engine``, client and server in one process.

    python -m benchmarks.bench_engines [--quick] [--model FOLDER]

``make smollm2`` prepares the model, ``make vllm`` the server; VLLM_PYTHON names its interpreter where it is elsewhere.
"""

import argparse
import itertools
import json
import logging
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import structlog
import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers import ContinuousBatchingConfig, GenerationConfig

from backends.engines import torch as torch_engine
from backends.engines import vllm
from backends.engines._serve.program import ServerConfig, open_server
from backends.inproc.payloads import InprocPayloads
from backends.models.loading import load_module, named_weights
from backends.trainers.torch.probe import probe_of
from protocols.adapters import Host
from protocols.inference import EnginePort, GenerateRequest, SampleRequest, Sampling, WeightsManifest
from protocols.messages import PayloadRef, WeightVersion
from protocols.sections import Section, Site

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("CONDUCTOR_CACHE", "~/.cache/conductor")).expanduser()
VLLM_PYTHON = Path(os.environ.get("VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
COUNTS = (1, 16, 64)
PROMPT_TOKENS = 16
START_S = 600.0
OWN, SERVED, VLLM = "torch engine", "torch engine behind conductor engine", "vLLM on the CPU, over HTTP"
BY_GLOO = ", by gloo"
GENERATE, CONTINUOUS = "transformers, generate", "transformers, continuous batching"

Transport = Literal["file", "gloo"]

Generate = Callable[[Sequence[Sequence[int]]], Awaitable[None]]
"""Answers prompts, all at once."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured: rounds, and tokens of a completion."""

    rounds: int
    tokens: int


class Weights:
    """A model, and its weights staged as a trainer stages them, each time as another version."""

    def __init__(self, model: Path) -> None:
        self.site = Site(job_dir=str(model), model=Section(kind="pretrained", options={"path": str(model)}))
        self.module = load_module(self.site).eval()
        self.payloads = InprocPayloads()
        self._probe = probe_of(self.module)
        self._version = 0

    @property
    def host(self) -> Host:
        """Where engines find them."""
        return Host(site=self.site, payloads=self.payloads)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """By name."""
        return named_weights(self.module)

    async def staged(self) -> WeightsManifest:
        """Stage them anew."""
        self._version += 1
        payload = PayloadRef(owner=f"weights/{self._version}", key="parameters")
        await self.payloads.put(payload, self.tensors)
        return WeightsManifest(
            version=WeightVersion(self._version),
            payload=payload,
            tensors=len(self.tensors),
            size_bytes=sum(tensor.nbytes for tensor in self.tensors.values()),
            probe=self._probe,
        )


def prompts_of(count: int, seed: int, vocabulary: int) -> list[list[int]]:
    """Return prompts that nobody has seen before, so that no cache knows them."""
    rng = random.Random(seed)
    return [[rng.randrange(vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def with_engine(engine: EnginePort, tokens: int) -> Generate:
    """Ask an engine, one request a prompt."""
    turns = itertools.count()

    async def generate(prompts: Sequence[Sequence[int]]) -> None:
        turn = next(turns)
        async with anyio.create_task_group() as tasks:
            for row, prompt in enumerate(prompts):
                sample = SampleRequest(request_id=f"bench.1/L{turn}/0/{row}/0", stream=f"{turn}/{row}")
                request = GenerateRequest(
                    prompt_ids=tuple(prompt), samples=(sample,), sampling=Sampling(max_tokens=tokens)
                )
                tasks.start_soon(engine.generate, request, name=f"request {row}")

    return generate


def with_generate(module: Any, tokens: int) -> Generate:
    """Let transformers generate one batch."""

    async def generate(prompts: Sequence[Sequence[int]]) -> None:
        ids = torch.tensor(prompts)
        module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )

    return generate


def with_continuous_batching(module: Any, tokens: int) -> Generate:
    """Let transformers batch as it goes."""
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=tokens, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(max_memory_percent=0.1)

    async def generate(prompts: Sequence[Sequence[int]]) -> None:
        module.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=config,
            continuous_batching_config=batching,
            persistent_manager=True,
            warmup=False,
        )

    return generate


@asynccontextmanager
async def open_served(weights: Weights, transport: Transport = "file") -> AsyncGenerator[EnginePort]:
    """Open our own server, and an engine over it that is given its weights in some way."""
    engine = torch_engine.Config(slots=max(COUNTS), threads=1)
    cfg = ServerConfig(protocol="vllm", engine=engine)
    async with (
        open_server(cfg, weights.site.model or Section(kind=""), job_dir=weights.site.job_dir) as url,
        vllm.open(vllm.Config(urls=(url,), weights=transport), weights.host) as served,
    ):
        yield served


@asynccontextmanager
async def open_vllm(weights: Weights, model: Path, transport: Transport = "file") -> AsyncGenerator[EnginePort]:
    """Start a vLLM server with the example's script, and open an engine over it, as above."""
    os.environ["VLLM_PYTHON"] = str(VLLM_PYTHON)
    command = (str(ROOT / "examples" / "vllm" / "serve.sh"), "{port}", str(model))
    cfg = vllm.Config(command=command, reload="conductor_reload", start_s=START_S, weights=transport)
    async with vllm.open(cfg, weights.host) as engine:
        yield engine


async def timed(call: Awaitable[Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how many seconds a call takes, by some clock."""
    began = clock()
    await call
    return clock() - began


async def tokens_per_s(
    sides: dict[str, Generate], effort: Effort, vocabulary: int, clock: Callable[[], float]
) -> dict[str, dict[int, float]]:
    """Let the sides take turns; return the medians by side and number of requests, in seconds of a clock."""
    took: dict[str, dict[int, list[float]]] = {name: {count: [] for count in COUNTS} for name in sides}
    for turn, count in itertools.product(range(effort.rounds + 1), reversed(COUNTS)):  # caches are sized by the first
        for name, generate in sides.items():
            seconds = await timed(generate(prompts_of(count, 100 * turn + count, vocabulary)), clock)
            if turn > 0:  # the first is for warming up
                took[name][count].append(seconds)
    return {
        name: {count: count * effort.tokens / statistics.median(found) for count, found in counts.items()}
        for name, counts in took.items()
    }


def copy_by_file(tensors: dict[str, torch.Tensor]) -> float:
    """Write the bytes of tensors to a file and read them back; returns the seconds."""
    arrays = [tensor.contiguous().numpy() for tensor in tensors.values()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bytes"
        began = time.perf_counter()
        with file.open("wb") as stream:
            for array in arrays:
                stream.write(array.data)
        file.read_bytes()
        return time.perf_counter() - began


async def publish_s(engines: dict[str, EnginePort], weights: Weights, effort: Effort) -> tuple[dict[str, float], float]:
    """Return how long each engine takes to serve new weights, and a copy of their bytes by way of a file."""
    took: dict[str, list[float]] = {name: [] for name in engines}
    copies: list[float] = []
    for _ in range(effort.rounds):
        for name, engine in engines.items():
            took[name].append(await timed(engine.load_weights(await weights.staged())))
        copies.append(copy_by_file(weights.tensors))
    return {name: statistics.median(found) for name, found in took.items()}, statistics.median(copies)


async def measure(model: Path, effort: Effort, *, has_vllm: bool) -> None:
    """Measure all, and print."""
    weights = Weights(model)
    async with AsyncExitStack() as stack:
        cfg = torch_engine.Config(slots=max(COUNTS), threads=1)
        own = await stack.enter_async_context(torch_engine.open(cfg, weights.host))
        engines = {OWN: own, SERVED: await stack.enter_async_context(open_served(weights))}
        if has_vllm:
            engines[VLLM] = await stack.enter_async_context(open_vllm(weights, model))
        for engine in engines.values():
            await engine.load_weights(await weights.staged())
        sides = {name: with_engine(engine, effort.tokens) for name, engine in engines.items()}
        sides[GENERATE] = with_generate(weights.module, effort.tokens)
        sides[CONTINUOUS] = with_continuous_batching(weights.module, effort.tokens)
        vocabulary = weights.module.config.vocab_size
        speeds = await tokens_per_s(sides, effort, vocabulary, time.perf_counter)
        within = {name: sides[name] for name in (OWN, GENERATE)}
        thrift = await tokens_per_s(within, effort, vocabulary, time.process_time)
        publishing = {name: engine for name, engine in engines.items() if name != OWN}
        publishing[SERVED + BY_GLOO] = await stack.enter_async_context(open_served(weights, "gloo"))
        if has_vllm:
            publishing[VLLM + BY_GLOO] = await stack.enter_async_context(open_vllm(weights, model, "gloo"))
        for name in publishing.keys() - engines.keys():
            await publishing[name].load_weights(await weights.staged())  # the first is slower
        published, copied = await publish_s(publishing, weights, effort)
    show(speeds, thrift, published, copied)


def show(
    speeds: dict[str, dict[int, float]],
    thrift: dict[str, dict[int, float]],
    published: dict[str, float],
    copied: float,
) -> None:
    """Print tables for people and one line of JSON."""
    for what, rows in (("tokens a second", speeds), ("tokens a second of CPU time", thrift)):
        table = Table(what, *(f"{count} at once" for count in COUNTS), title_justify="left")
        for name, counts in rows.items():
            table.add_row(name, *(f"{counts[count]:.1f}" for count in COUNTS))
        Console(width=100).print(table)
    table = Table("new weights", "took")
    for name, seconds in published.items():
        table.add_row(name, f"{seconds:.2f} s")
    table.add_row("the same bytes to a file and back", f"{copied:.2f} s")
    Console(width=100).print(table)
    beside = {name: speeds[OWN][16] / speeds[name][16] for name in (GENERATE, VLLM) if name in speeds}
    last = {
        "vs_transformers_generate": round(beside[GENERATE], 3),
        "vs_vllm_cpu_16": round(beside[VLLM], 3) if VLLM in beside else None,
        "publish_file_vs_copy": round(published[SERVED] / copied, 3),
    }
    print(json.dumps(last))


def main() -> None:
    """Read the options, and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of 8 tokens")
    parser.add_argument("--model", type=Path, default=CACHE / "smollm2", help="folder of a model")
    given = parser.parse_args()
    if not given.model.is_dir():
        parser.error(f"there is no model in {given.model}; `make smollm2` prepares it")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    transformers.logging.set_verbosity_error()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if not (has_vllm := VLLM_PYTHON.exists()):
        print(f"no vLLM server: there is no {VLLM_PYTHON}; `make vllm` prepares it")
    effort = Effort(rounds=1, tokens=8) if given.quick else Effort(rounds=3, tokens=32)
    anyio.run(partial(measure, given.model, effort, has_vllm=has_vllm))


if __name__ == "__main__":
    main()

"""A real vLLM server: ``make test-vllm``. Skipped where there is none."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from backends.engines import vllm
from backends.models.loading import load_module, named_weights
from backends.sim.payloads import ScriptedPayloads
from backends.trainers.torch.probe import probe_of
from conductor import Conductor, load_config
from protocols.adapters import Host
from protocols.errors import Aborted, ConductorError, Transient
from protocols.inference import EnginePort, GenerateRequest, Generation, Probe, SampleRequest, Sampling, WeightsManifest
from protocols.messages import PayloadRef, WeightVersion
from protocols.sections import Section, Site

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm"
PROMPT = (504, 3575, 282, 4649, 314)
CLOSE = 1e-4

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("CONDUCTOR_VLLM" not in os.environ, reason="make test-vllm prepares a server"),
]


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PYTHON", os.environ["CONDUCTOR_VLLM"])
    monkeypatch.setenv("CONDUCTOR_CACHE", str(Path(os.environ["CONDUCTOR_SMOLLM2"]).parent))


class Trained:
    """A model that changes, in the place of a trainer."""

    def __init__(self) -> None:
        path = {"path": os.environ["CONDUCTOR_SMOLLM2"]}
        self.site = Site(job_dir=str(EXAMPLE), model=Section(kind="pretrained", options=path))
        self.payloads = ScriptedPayloads()
        self._module = load_module(self.site)
        self._generator = torch.Generator().manual_seed(0)

    async def manifest(self, version: int, *, change: float = 0.0) -> WeightsManifest:
        """Move every weight, embeddings included, by noise of ``change`` times its mean size, and stage it."""
        own = named_weights(self._module)
        for tensor in own.values():
            noise = torch.randn(tensor.shape, generator=self._generator)
            tensor.add_(noise * change * tensor.abs().mean())
        payload = PayloadRef(owner=f"weights/{version}", key="parameters")
        weights = {name: tensor.clone() for name, tensor in own.items()}
        await self.payloads.put(payload, weights)
        return WeightsManifest(
            version=WeightVersion(version),
            payload=payload,
            tensors=len(weights),
            size_bytes=sum(tensor.nbytes for tensor in weights.values()),
            probe=probe_of(self._module),
        )

    def distance(self, generation: Generation) -> float:
        """Return the largest difference between log-probabilities and those of transformers."""
        apart = [0.0]
        for one in generation.completions:
            ids = torch.tensor([PROMPT + one.token_ids])
            with torch.no_grad():
                logits = self._module(input_ids=ids, use_cache=False).logits[0, len(PROMPT) - 1 : -1]
            own = logits.log_softmax(-1).gather(-1, ids[0, len(PROMPT) :, None])[:, 0]
            apart.append(float((own - torch.tensor(one.logprobs)).abs().max()))
        return max(apart)


@asynccontextmanager
async def opened(trained: Trained, **options: Any) -> AsyncGenerator[EnginePort]:
    command = ("./serve.sh", "{port}")
    cfg = vllm.Config(command=command, start_s=600, **{"reload": "conductor_reload", **options})
    async with vllm.open(cfg, Host(site=trained.site, payloads=trained.payloads)) as engine:
        yield engine


def asks(prefix: str, *, samples: int = 4, tokens: int = 20) -> GenerateRequest:
    named = (SampleRequest(request_id=f"{prefix}{index}/0", stream=f"0/0/{index}/0") for index in range(samples))
    return GenerateRequest(prompt_ids=PROMPT, samples=tuple(named), sampling=Sampling(max_tokens=tokens))


async def test_a_server_does_what_the_port_promises() -> None:
    """Issue G: log-probabilities are transformers', spans the server's; aborts end, weights are held."""
    trained = Trained()
    async with opened(trained) as engine:
        assert (await engine.status()).version is None
        await engine.load_weights(await trained.manifest(0))
        first = await engine.generate(asks("p.1/L0/0/"))
        assert trained.distance(first) < CLOSE
        again = await engine.generate(asks("p.1/L9/3/"))
        assert [one.token_ids for one in again.completions] == [one.token_ids for one in first.completions]
        await _spans(engine, trained)
        await _aborts(engine)
        manifest = await trained.manifest(2, change=0.01)
        assert manifest.probe is not None
        wrong = Probe(token_ids=manifest.probe.token_ids, logprobs=tuple(one - 0.1 for one in manifest.probe.logprobs))
        with pytest.raises(Transient, match="does not hold it"):
            await engine.load_weights(
                WeightsManifest(
                    version=manifest.version, payload=manifest.payload, tensors=1, size_bytes=1, probe=wrong
                )
            )
        assert (await engine.status()).version is None
        await engine.load_weights(manifest)
        assert trained.distance(await engine.generate(asks("p.1/L99/0/"))) < CLOSE


async def _spans(engine: EnginePort, trained: Trained) -> None:
    found: list[Generation] = []

    async def generate() -> None:
        found.append(await engine.generate(asks("p.1/L1/0/", tokens=300)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(generate)
        await anyio.sleep(1)  # some tokens are made; how many is the machine's
        await engine.load_weights(await trained.manifest(1, change=0.01))
    for one in found[0].completions:
        assert [segment.version for segment in one.segments] == [0, 1]
        assert sum(segment.count for segment in one.segments) == 300


async def _aborts(engine: EnginePort) -> None:
    errors: list[ConductorError] = []

    async def generate(lease: int) -> None:
        try:
            await engine.generate(asks(f"p.1/L{lease}/0/", tokens=400))
        except ConductorError as exc:
            errors.append(exc)

    async with anyio.create_task_group() as tasks:
        for lease in range(100, 150):
            tasks.start_soon(generate, lease)
        await anyio.sleep(1)
        assert len(await engine.abort("p.1/")) == 200
        assert await engine.live_requests() == frozenset()
    assert {type(error) for error in errors} == {Aborted}


async def test_a_tied_head_that_a_reload_leaves_behind_is_found() -> None:
    """vLLM 0.32 on a CPU: ``reload_weights`` succeeds, and a head tied to the embeddings is the old one."""
    trained = Trained()
    async with opened(trained, reload="reload_weights") as engine:
        await engine.load_weights(await trained.manifest(0))
        with pytest.raises(Transient, match="accepted version 1 and does not hold it"):
            await engine.load_weights(await trained.manifest(1, change=0.05))


async def test_three_steps_through_a_server(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    overrides = [f"model.path={os.environ['CONDUCTOR_SMOLLM2']}"]
    job = load_config(EXAMPLE / "job.toml", overrides=overrides, run_dir=str(tmp_path / "run"))
    result = await Conductor.run(job)
    assert result.steps == 3
    assert result.accounts.balanced
    assert max(record.metrics["ratio/max"] for record in result.metrics) < 1 + 1e-3

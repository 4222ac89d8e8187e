"""Real vLLM servers, and a model that changes, in the place of a trainer."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import torch
from transformers import DynamicCache

from backends.engines._http.adapters import lora_of
from backends.engines._http.connection import Connection
from backends.engines._http.dialect import Answered
from backends.engines._http.engine import HttpEngine
from backends.engines._http.opening import ServerOptions
from backends.engines._http.server import open_server_engine
from backends.engines._http.vllm import VllmDialect
from backends.models.loading import load_module, named_weights
from backends.models.opening import load_tokenizer
from backends.sim.payloads import ScriptedPayloads
from backends.trainers.torch.probe import probe_of
from protocols.adapters import Host
from protocols.inference import Completion, GenerateRequest, SampleRequest, Sampling, WeightsManifest
from protocols.messages import PayloadRef, WeightVersion
from protocols.sections import Section, Site

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm"
SERVE = EXAMPLE / "serve.sh"
PROMPT = (504, 3575, 282, 4649, 314)
START_S = 600.0


class Trained:
    """A model that changes, in the place of a trainer; it remembers all that it was.

    Args:
        lora: Options of the adapters that change; without them the whole model does.
    """

    def __init__(self, **lora: Any) -> None:
        options = {"path": os.environ["CONDUCTOR_SMOLLM2"]} | ({"lora": lora} if lora else {})
        self.site = Site(job_dir=str(EXAMPLE), model=Section(kind="pretrained", options=options))
        self.payloads = ScriptedPayloads()
        self._module = load_module(self.site)
        self._generator = torch.Generator().manual_seed(0)
        self._staged: dict[int, dict[str, torch.Tensor]] = {}

    async def manifest(self, version: int, *, change: float = 0.0) -> WeightsManifest:
        """Move every weight, embeddings included, by noise of ``change`` times its mean size, and stage it."""
        if self._staged:
            self._bind(max(self._staged))
        own = named_weights(self._module)
        for tensor in own.values():
            noise = torch.randn(tensor.shape, generator=self._generator)
            size = tensor.abs().mean() if tensor.any() else 0.01  # half of all adapters begin as zeros
            tensor.add_(noise * change * size)
        payload = PayloadRef(owner=f"weights/{version}", key="parameters")
        weights = {name: tensor.clone() for name, tensor in own.items()}
        self._staged[version] = weights
        await self.payloads.put(payload, weights)
        return WeightsManifest(
            version=WeightVersion(version),
            payload=payload,
            tensors=len(weights),
            size_bytes=sum(tensor.nbytes for tensor in weights.values()),
            probe=probe_of(self._module),
        )

    @torch.no_grad()
    def distance(self, one: Completion) -> float:
        """Return the largest difference between log-probabilities and those of transformers.

        Each token is computed with the weights of its segment. What those before it had computed is kept; the last
        token of a segment is first read by the weights of the next.
        """
        ids = torch.tensor([PROMPT + one.token_ids])
        cache, read, said = DynamicCache(), 0, len(PROMPT)
        apart = [0.0]
        for segment in one.segments:
            self._bind(segment.version)
            end = said + segment.count
            logits = self._module(input_ids=ids[:, read : end - 1], cache=cache).logits[0, -segment.count :]
            own = logits.log_softmax(-1).gather(-1, ids[0, said:end, None])[:, 0]
            told = torch.tensor(one.logprobs[said - len(PROMPT) : end - len(PROMPT)])
            apart.append(float((own - told).abs().max()))
            read, said = end - 1, end
        return max(apart)

    def _bind(self, version: int) -> None:
        for name, tensor in named_weights(self._module).items():
            tensor.copy_(self._staged[version][name])


def save_model(section: Section, folder: Path) -> str:
    """Write a model of the job for servers to start with; returns the folder."""
    site = Site(job_dir="/", seed=3, model=section)
    load_module(site).save_pretrained(folder)
    load_tokenizer(site).save(folder)
    return str(folder)


@contextmanager
def running_server(*options: str, model: str | None = None, **environment: str) -> Generator[str]:
    """Start a server with the example's script; gives its URL once it is well, and ends it and all that it started."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    command = [str(SERVE), port, model or os.environ["CONDUCTOR_SMOLLM2"], *options]
    environment |= {**os.environ, "VLLM_PYTHON": os.environ["CONDUCTOR_VLLM"]}
    with subprocess.Popen(command, env=environment, start_new_session=True) as server:  # noqa: S603 - our own
        try:
            yield _well(server, f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def _well(server: subprocess.Popen[bytes], url: str) -> str:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up:
        assert server.poll() is None, f"the server ended with {server.returncode}"
        with suppress(httpx2.TransportError):
            if httpx2.get(f"{url}/health", trust_env=False).is_success:
                return url
        time.sleep(0.2)
    raise AssertionError(f"{url} is not well after {START_S:.0f} s")


class Overheard(VllmDialect):
    """Speaks to a server, and keeps what it answered, by request."""

    def __init__(self, connection: Connection, reload: str, *, adapters: bool) -> None:
        super().__init__(connection, "raw", reload, adapters=adapters)
        self.answers: dict[str, Answered] = {}

    async def generate(
        self, sample: SampleRequest, request: GenerateRequest, salt: str, undo: Callable[[], Awaitable[None]]
    ) -> Answered:
        """Generate one sample."""
        answer = await super().generate(sample, request, salt, undo)
        self.answers[sample.request_id] = answer
        return answer


@asynccontextmanager
async def attached(
    url: str, trained: Trained, *, reload: str = "conductor_reload", **options: Any
) -> AsyncGenerator[tuple[HttpEngine, Overheard]]:
    """Open the engine over a server; gives what it speaks with as well."""
    speaks: list[Overheard] = []

    def speak(connection: Connection) -> Overheard:
        speaks.append(Overheard(connection, reload, adapters=lora_of(trained.site) is not None))
        return speaks[-1]

    host = Host(site=trained.site, payloads=trained.payloads)
    async with open_server_engine(ServerOptions(urls=(url,), **options), host, speak) as engine:
        yield engine, speaks[-1]


def asks(prefix: str, *, samples: int = 4, tokens: int = 20) -> GenerateRequest:
    """Return a request for some samples of one prompt."""
    named = (SampleRequest(request_id=f"{prefix}{index}/0", stream=f"0/0/{index}/0") for index in range(samples))
    return GenerateRequest(prompt_ids=PROMPT, samples=tuple(named), sampling=Sampling(max_tokens=tokens))

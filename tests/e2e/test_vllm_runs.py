"""Runs through a real vLLM server: ``make test-vllm``. Skipped where there is none."""

import os
import signal
import tomllib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from backends.engines._http.connection import Connection, ServerRefused, new_client
from backends.engines._http.vllm import VllmDialect
from conductor import Conductor, RunResult, load_config
from protocols.errors import WorkerLost
from protocols.sections import Section
from tests.support.leftovers import in_session
from tests.support.served_runs import assert_learned_as_much, job_over, run
from tests.support.vllm_servers import EXAMPLE, SERVE, save_model

MODEL = """kind = "scratch"
architecture = "llama"
vocabulary = "0123456789>"
[model.config]
hidden_size = 64
intermediate_size = 256
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 512
tie_word_embeddings = false
"""
"""A layout that vLLM has on a CPU: it knows no heads smaller than 32."""

DEADLINES = ("deadlines.start=700", "deadlines.publish=600", "deadlines.abort=60")

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


def tiny_model(folder: Path) -> str:
    """Write the model for servers to start with, whose weights they exchange for the run's."""
    options = tomllib.loads(f"[model]\n{MODEL}")["model"]
    return save_model(Section(kind=options.pop("kind"), options=options), folder)


def engine_section(*command: str) -> str:
    return f'kind = "vllm"\ncommand = {list(command)!r}\nreload = "conductor_reload"\nstart_s = 600'


async def test_three_steps_through_a_server(tmp_path: Path) -> None:
    """Issue G: the example that ships."""
    pytest.importorskip("reasoning_gym")
    overrides = [f"model.path={os.environ['CONDUCTOR_SMOLLM2']}"]
    job = load_config(EXAMPLE / "job.toml", overrides=overrides, run_dir=str(tmp_path / "run"))
    result = await Conductor.run(job)
    assert result.steps == 3
    assert result.accounts.balanced
    assert max(record.metrics["ratio/max"] for record in result.metrics) < 1 + 1e-3


async def test_the_demo_task_is_learned_as_well_through_a_server(tmp_path: Path) -> None:
    """Issue G: to the reward that the engine in the process gets."""
    (tmp_path / "plain").mkdir()
    plain = await run(job_over(tmp_path / "plain", model=MODEL), tmp_path / "plain" / "run", "engine.threads=1")
    section = engine_section(str(SERVE), "{port}", tiny_model(tmp_path / "model"))
    served = await run(job_over(tmp_path, model=MODEL, engine=section), tmp_path / "run", *DEADLINES)
    assert_learned_as_much(served, plain, least=0.45)


async def generating(server: VllmDialect) -> bool:
    return (await server.load()).requests > 0


async def loading(server: VllmDialect) -> bool:
    return (await server.state()).label.endswith("-loading")


async def standing_still(server: VllmDialect) -> bool:
    state = await server.state()
    return state.paused and not state.label.endswith("-loading")


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def kill_when(servers: Path, moment: Callable[[VllmDialect], Awaitable[bool]]) -> None:
    """Kill the first server, which serves version 1 by then, at some moment; its engine's process is left behind."""
    while not (started := files(servers)):  # noqa: ASYNC110 - a file appears, and nobody tells
        await anyio.sleep(0.05)
    url = f"http://127.0.0.1:{started[0].name}"
    async with new_client(url) as client:
        server = VllmDialect(Connection(client, url), "raw")

        async def wait(until: Callable[[VllmDialect], Awaitable[bool]]) -> None:
            while True:
                with suppress(WorkerLost, ServerRefused):  # it starts
                    if await until(server):
                        return
                await anyio.sleep(0.005)

        await wait(trained)
        await wait(moment)
    os.kill(int(started[0].read_text()), signal.SIGKILL)


async def trained(server: VllmDialect) -> bool:
    return "-v1-" in (await server.state()).label


@pytest.mark.parametrize(
    ("moment", "publish"), [(generating, "inflight"), (loading, "inflight"), (standing_still, "interrupt")]
)
async def test_a_server_that_is_killed_is_started_again_with_the_current_weights(
    tmp_path: Path, moment: Callable[[VllmDialect], Awaitable[bool]], publish: str
) -> None:
    """I03: the engine was gone and the run hung; here it goes on, its books balance, and nothing is left."""
    servers = tmp_path / "servers"
    servers.mkdir()
    starts = ("sh", "-c", 'echo $$ > "$1"; exec "$2" "$3" "$4"', "sh", f"{servers}/{{port}}", str(SERVE), "{port}")
    section = engine_section(*starts, tiny_model(tmp_path / "model"))
    job = job_over(tmp_path, model=MODEL, engine=section)
    short = ["steps=6", "batch_groups=4", "group_size=4", "sampling.max_tokens=64", f"publish={publish}", *DEADLINES]
    results: list[RunResult] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill_when, servers, moment)
        results.append(await run(job, tmp_path / "run", *short))
        tasks.cancel_scope.cancel()
    assert [result.steps for result in results] == [6]
    assert max(record.metrics["age/max"] for record in results[0].metrics) == 0
    leaders = [int(file.read_text()) for file in files(servers)]
    assert len(leaders) == 2
    assert [in_session(leader) for leader in leaders] == [[], []]
    assert not any((tmp_path / "run" / "weights").iterdir())

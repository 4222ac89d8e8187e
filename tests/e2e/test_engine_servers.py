"""Runs through servers: ``conductor engine`` as a program of its own, attached to or started by the fleet."""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conductor import RunResult
from tests.support.served_runs import assert_learned_as_much, job_over, run
from tests.support.small_runs import JOB, ROOT

pytest.importorskip("h11", reason="pip install 'conductor-rl[serve]'")
pytest.importorskip("httpx2", reason="pip install 'conductor-rl[http]'")

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = [
    sys.executable,
    "-c",
    "from conductor.cli.main import main; main()",
    "engine",
    str(JOB),
    "--threads",
    "1",
]


@contextmanager
def running_server(protocol: str) -> Generator[str]:
    """Run the program; gives its URL."""
    command = [*PROGRAM, "--protocol", protocol]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:  # noqa: S603 - our own
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            assert server.wait(10) == 128 + 15


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The run that all servers are compared with."""
    return asyncio.run(run(JOB, tmp_path_factory.mktemp("plain") / "run", "engine.threads=1"))


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
async def test_the_example_learns_as_much_through_a_server(tmp_path: Path, protocol: str, plain: RunResult) -> None:
    """Issue G: the demo task through ``conductor engine``, to the reward that the engine in the process gets."""
    with running_server(protocol) as url:
        job = job_over(tmp_path, engine=f'kind = "{protocol}"\nurls = ["{url}"]')
        served = await run(job, tmp_path / "served")
    assert_learned_as_much(served, plain, least=0.5)


@pytest.mark.parametrize(
    ("protocol", "crash", "weights"),
    [("vllm", "generate#60", "file"), ("vllm", "load_weights#3", "gloo"), ("sglang", "resume#3", "gloo")],
)
async def test_a_server_that_dies_is_started_again_with_the_current_weights(
    tmp_path: Path, protocol: str, crash: str, weights: str
) -> None:
    """I03: the engine was gone and the run hung; here it goes on, and the books balance."""
    command = [*PROGRAM, "--protocol", protocol, "--port", "{port}", "--faults", f"crash@Engine.{crash}"]
    job = job_over(tmp_path, engine=f'kind = "{protocol}"\ncommand = {command!r}\nweights = "{weights}"')
    short = ["steps=4", "batch_groups=4", "group_size=4", "max_age=0"]
    result = await run(job, tmp_path / "run", *short)
    assert result.steps == 4
    assert max(record.metrics["age/max"] for record in result.metrics) == 0
    assert not list((tmp_path / "run").glob("weights/*"))

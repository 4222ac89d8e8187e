"""The benchmark of the ledger still runs; how fast things are is for it to say, on a machine that is idle."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.real_time
def test_its_short_form_ends_with_its_figures() -> None:
    command = [sys.executable, "-m", "benchmarks.bench_ledger", "--quick"]
    done = subprocess.run(  # noqa: S603 - our own module
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() == {"vs_executemany", "vs_executemany_single", "slowdown", "resume_s", "bytes_per_event"}
    assert min(figures["vs_executemany"], figures["vs_executemany_single"], figures["resume_s"]) > 0
    assert 100 < figures["bytes_per_event"] < 1000

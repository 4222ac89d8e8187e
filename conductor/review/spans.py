"""A run as OpenTelemetry spans, from the same record as its timeline: one trace, with a link for each group's way.

The record has a clock of its own; the run's log says when that began. What the spans say of who, what and how is in
their attributes, ``conductor.*``.
"""

import datetime as dt
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from conductor.review.chronicle import Chronicle
from conductor.review.trace import Slice, slices_of
from protocols.errors import UserError

_NS = 1_000_000_000
_BATCH = 512
_MISSING = "OpenTelemetry is not installed: pip install 'conductor-rl[otel]'"


def otlp_exporter(endpoint: str) -> Any:
    """Return an exporter that sends spans to a collector, by HTTP.

    Args:
        endpoint: Of the collector, ``http://localhost:4318``.

    Raises:
        UserError: The library is not installed.
    """
    exporting = _library("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    return exporting.OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")


def export(told: Chronicle, exporter: Any, *, name: str, began: int) -> int:
    """Hand a run over as spans, and wait until the exporter took them.

    Args:
        told: The run.
        exporter: A ``SpanExporter`` of the OpenTelemetry SDK; it is shut down.
        name: Of the run.
        began: Nanoseconds since the epoch at which the run's clock began.

    Returns:
        How many spans, the run's own included.

    Raises:
        UserError: The library is not installed, or the exporter did not take them.
    """
    sdk, resources = _library("opentelemetry.sdk.trace"), _library("opentelemetry.sdk.resources")
    batches = _Batches(exporter, _library("opentelemetry.sdk.trace.export").SpanExportResult.SUCCESS)
    provider = sdk.TracerProvider(
        sampler=_library("opentelemetry.sdk.trace.sampling").ALWAYS_ON,
        resource=resources.Resource.create({"service.name": "conductor", "conductor.run": name}),
        active_span_processor=batches,
        span_limits=sdk.SpanLimits(max_links=sdk.SpanLimits.UNSET),  # a step has a link for each of its groups
        shutdown_on_exit=False,
    )
    count = _Spans(provider.get_tracer("conductor"), began).tell(told, name)
    provider.shutdown()
    if batches.refused:
        raise UserError("the collector did not take the spans; check that it runs, and the address of its HTTP port")
    return count


def began_ns(run_dir: Path) -> int:
    """Return when a run began, in nanoseconds since the epoch: as its log says, or as old as its job file is.

    Raises:
        UserError: The folder holds neither.
    """
    with suppress(OSError), (run_dir / "log.jsonl").open("rb") as file:
        for line in file:
            with suppress(msgspec.MsgspecError):
                found = msgspec.json.decode(line, type=_Line)
                if found.event == "run.started":
                    return round(found.timestamp.timestamp() * _NS)
    try:
        return (run_dir / "job.json").stat().st_mtime_ns
    except OSError as exc:
        raise UserError(f"{run_dir} does not say when its run began: {exc}") from exc


class _Line(msgspec.Struct):
    event: str
    timestamp: dt.datetime


class _Batches:
    """A span processor that waits for the exporter: the library's own drops what comes faster than it is taken."""

    def __init__(self, exporter: Any, success: Any) -> None:
        self._exporter, self._success = exporter, success
        self._waiting: list[Any] = []
        self.refused = False

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        pass

    def on_ending(self, span: Any) -> None:
        pass

    _on_ending = on_ending

    def on_end(self, span: Any) -> None:
        self._waiting.append(span)
        if len(self._waiting) >= _BATCH:
            self.force_flush()

    def force_flush(self, timeout_millis: int = 0) -> bool:
        del timeout_millis
        if self._waiting and not self.refused:
            self.refused = self._exporter.export(self._waiting) is not self._success
        self._waiting = []
        return not self.refused

    def shutdown(self) -> None:
        self.force_flush()
        self._exporter.shutdown()


class _Spans:
    def __init__(self, tracer: Any, began_ns: int) -> None:
        self._api = _library("opentelemetry.trace")
        self._tracer = tracer
        self._began_ns = began_ns

    def tell(self, told: Chronicle, name: str) -> int:
        """Make all spans; those that lead on come before those that they lead to."""
        slices = sorted(slices_of(told), key=lambda one: (one.began_s, one.ended_s))
        root = self._tracer.start_span(f"run {name}", start_time=self._began_ns)
        parent = self._api.set_span_in_context(root)
        ways: dict[int, Any] = {}
        for one in slices:
            self._slice(one, parent, ways)
        root.end(self._at(max((one.ended_s for one in slices), default=0.0)))
        return len(slices) + 1

    def _slice(self, one: Slice, parent: Any, ways: dict[int, Any]) -> None:
        links = [self._api.Link(ways[flow]) for _, flow in one.flows if flow in ways]
        facts = {
            "conductor.process": one.process,
            **{f"conductor.{name}": _attribute(fact) for name, fact in one.args.items()},
        }
        span = self._tracer.start_span(
            one.name, context=parent, start_time=self._at(one.began_s), attributes=facts, links=links
        )
        span.end(self._at(one.ended_s))
        for phase, flow in one.flows:
            if phase != "f":
                ways[flow] = span.get_span_context()

    def _at(self, seconds: float) -> int:
        return self._began_ns + round(seconds * _NS)


def _attribute(fact: Any) -> str | bool | int | float:
    return fact if isinstance(fact, str | bool | int | float) else msgspec.json.encode(fact).decode()


def _library(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        raise UserError(_MISSING) from exc

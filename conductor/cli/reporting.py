"""``conductor report`` and ``conductor trace``: a page about runs, and the timeline of one, as a file or as spans."""

from collections.abc import Sequence
from pathlib import Path

import click

from conductor.control.client import ask
from conductor.control.messages import Request
from conductor.inspection import read_record
from conductor.loading import read_job
from conductor.review.chronicle import chronicle
from conductor.review.page import chart_library, page
from conductor.review.report import report, report_on
from conductor.review.spans import began_ns, export, otlp_exporter
from conductor.review.trace import trace
from protocols.errors import UserError

_PATIENCE_S = 5.0
_MOST = 5


def write_report(run_dirs: Sequence[str], output: str | None) -> int:
    """Write the page, and print where it lies; returns the exit code.

    Args:
        run_dirs: Folders of runs; they may be going on.
        output: The file; None: ``report.html`` in the first folder.

    Raises:
        UserError: A folder holds no record, or the page cannot be written.
    """
    if len(run_dirs) > _MOST:
        raise UserError(f"at most {_MOST} runs are laid over one another; name fewer than {len(run_dirs)}")
    library = chart_library()
    runs = [report_on(read_job(run_dir), live=_goes_on(run_dir)) for run_dir in run_dirs]
    path = Path(output) if output is not None else Path(run_dirs[0]) / "report.html"
    _write(path, page(report(*runs), library).encode())
    for run in runs:
        click.echo(f"{run.name}: {run.limit.sentence}")
    click.echo(f"the report is {path}")
    return 0


def write_trace(run_dir: str, output: str | None) -> int:
    """Write the timeline of a run, and print where it lies; returns the exit code.

    Args:
        run_dir: Its folder; it may be going on.
        output: The file; None: ``trace.json`` in the folder.

    Raises:
        UserError: The folder holds no record, or the file cannot be written.
    """
    told = chronicle(read_record(read_job(run_dir)).events)
    path = Path(output) if output is not None else Path(run_dir) / "trace.json"
    _write(path, trace(told))
    click.echo(f"the timeline is {path}: open it at https://ui.perfetto.dev, which reads it in the browser")
    return 0


def send_trace(run_dir: str, endpoint: str) -> int:
    """Send the timeline of a run to a collector of OpenTelemetry, and say how many spans; returns the exit code.

    Args:
        run_dir: Its folder; it may be going on.
        endpoint: Of the collector, ``http://localhost:4318``.

    Raises:
        UserError: The folder holds no record, the library is not installed, or the collector does not take it.
    """
    exporter = otlp_exporter(endpoint)
    cfg = read_job(run_dir)
    count = export(chronicle(read_record(cfg).events), exporter, name=cfg.name, began=began_ns(Path(run_dir)))
    click.echo(f"{count} spans were sent to {endpoint}")
    return 0


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as exc:
        raise UserError(f"{path} cannot be written: {exc}; name another file with -o") from exc


def _goes_on(run_dir: str) -> bool:
    return ask(Path(run_dir), Request(command="status"), patience_s=_PATIENCE_S) is not None

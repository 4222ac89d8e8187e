"""The log: JSON lines in the run's folder, plain lines on stderr, and never a reason to fail."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.contextvars import bound_contextvars

from conductor.observe.log import JsonLines, PlainLines, configure_adapters, open_log


def entries(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def test_each_event_is_one_json_line_with_time_level_event_and_facts(tmp_path: Path) -> None:
    with open_log(str(tmp_path / "run"), to_stderr=False) as log, bound_contextvars(step=3):
        log.info("step.trained", loss=0.5, path=tmp_path)
        log.bind(lease_id="L1").warning("reward.failed", detail="two\nlines")
        log.debug("left.out")
    first, second = entries(tmp_path / "run")
    assert list(first)[:3] == ["timestamp", "level", "event"]
    assert (first["level"], first["event"], first["step"], first["loss"]) == ("info", "step.trained", 3, 0.5)
    assert str(tmp_path) in first["path"]
    assert (second["lease_id"], second["detail"]) == ("L1", "two\nlines")


def test_an_exception_is_logged_with_its_traceback(tmp_path: Path) -> None:
    with open_log(str(tmp_path), to_stderr=False) as log:
        try:
            int("no")
        except ValueError:
            log.exception("port.failed")
    (entry,) = entries(tmp_path)
    assert entry["level"] == "error"
    assert entry["exception"].endswith("invalid literal for int() with base 10: 'no'")


def test_a_second_run_into_the_same_folder_is_appended(tmp_path: Path) -> None:
    for number in range(2):
        with open_log(str(tmp_path), to_stderr=False) as log:
            log.info("run.started", number=number)
    assert [entry["number"] for entry in entries(tmp_path)] == [0, 1]


def test_the_configuration_of_structlog_stays_the_callers(tmp_path: Path) -> None:
    """A library that configures a global logger takes the log away from the program that embeds it."""
    before = structlog.get_config()
    with open_log(str(tmp_path), to_stderr=True) as log:
        log.info("run.started")
        assert structlog.get_config() == before
    assert not structlog.is_configured()


def test_without_a_folder_and_stderr_it_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with open_log(None, to_stderr=False) as log:
        log.error("run.failed")
    assert capsys.readouterr() == ("", "")


def test_plain_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """All but the metrics of a step: the progress has a line for it."""
    with open_log(None, to_stderr=True) as log:
        log.info("checkpoint.saved", step=1, seconds=0.123456)
        log.info("step.trained", step=1)
        log.warning("reward.failed", kind="raised", detail="Traceback:\n  no")
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line[9:] if line[2:3] == ":" else line for line in err.splitlines()]
    assert lines == [
        "info checkpoint.saved step=1 seconds=0.1235",
        "warning reward.failed kind=raised more=in the log only",
        "Traceback:",
        "  no",
    ]


def test_a_warning_that_comes_again_is_left_to_the_file() -> None:
    """I07: one failing reward wrote the same error for every sample of every step."""
    stream = io.StringIO()
    lines = PlainLines(stream, least="info")
    for kind in ("raised", "raised", "timed_out"):
        lines.write({"timestamp": "2026-01-02T03:04:05Z", "level": "warning", "event": "reward.failed", "kind": kind})
    lines.write({"timestamp": "2026-01-02T03:04:05Z", "level": "error", "event": "abort.unconfirmed"})
    assert stream.getvalue().splitlines() == [
        "03:04:05 warning reward.failed kind=raised more=in the log only",
        "03:04:05 warning reward.failed kind=timed_out more=in the log only",
        "03:04:05 error abort.unconfirmed",
    ]


def test_a_terminal_shows_what_is_amiss_and_no_more() -> None:
    stream = io.StringIO()
    lines = PlainLines(stream, least="warning")
    lines.write({"timestamp": "2026-01-02T03:04:05Z", "level": "info", "event": "step.trained"})
    assert stream.getvalue() == ""


def test_a_folder_that_cannot_be_made_costs_the_log_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with open_log(str(tmp_path / "file" / "run"), to_stderr=False) as log:
        log.info("run.started")


def test_a_full_disk_costs_lines_and_not_the_run() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        JsonLines(descriptor).write({"timestamp": "", "level": "info", "event": "run.started"})
    finally:
        os.close(descriptor)


def test_a_closed_stream_costs_lines_and_not_the_run() -> None:
    stream = io.StringIO()
    stream.close()
    PlainLines(stream, least="info").write({"timestamp": "", "level": "info", "event": "run.started"})


def test_what_json_cannot_say_is_written_as_text(tmp_path: Path) -> None:
    with open_log(str(tmp_path), to_stderr=False) as log:
        log.info("odd.seen", value=object(), nan=float("nan"))
    (entry,) = entries(tmp_path)
    assert entry["value"].startswith("<object")
    assert entry["nan"] is None


def test_a_program_of_one_run_has_its_adapters_log_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tracker that is down, or an engine that restarts, was told on a screen only, which nobody looks at."""
    log = structlog.get_logger("adapter")  # as modules do, long before anybody configures
    run_dir = tmp_path / "run"
    configure_adapters(str(run_dir), to_stderr=True)
    log.warning("too.early")
    assert not run_dir.exists()
    with open_log(str(run_dir), to_stderr=False) as own:
        own.info("run.started")
        for tracker in ("mlflow", "wandb", "mlflow"):
            log.warning("tracker.failed", tracker=tracker)
        own.info("run.finished")
    told = [(entry["event"], entry.get("tracker")) for entry in entries(run_dir)]
    failed = [("tracker.failed", tracker) for tracker in ("mlflow", "wandb", "mlflow")]
    assert told == [("run.started", None), *failed, ("run.finished", None)]
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[2] for line in err.splitlines()] == ["too.early", "tracker.failed", "tracker.failed"]

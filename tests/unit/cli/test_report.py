"""The report: what it shows is what the record says, of a finished run, of one that goes on, of two."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from conductor.cli.main import main
from conductor.inspection import inspect, read_record
from conductor.loading import read_job
from conductor.past import steps_of
from conductor.review.curves import CHARTS
from conductor.review.page import chart_library, page
from conductor.review.report import report, report_on
from protocols.errors import UserError
from tests.support.texts import exactly
from tests.unit.cli.test_asking import running
from tests.unit.cli.test_commands import JOB

pytestmark = pytest.mark.real_time  # the commands start a loop of their own

LIBRARY = "window.Plotly = {};"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def ran(folder: Path, *arguments: str, job: str = JOB) -> str:
    path, run_dir = folder / "job.toml", str(folder / "run")
    folder.mkdir(exist_ok=True)
    path.write_text(job, encoding="utf-8")
    invoke("run", str(path), "--run-dir", run_dir, "--quiet", *arguments)
    return run_dir


def embedded(text: str) -> Any:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    return json.loads(data)


def shown(run_dir: str) -> Any:
    return embedded(page(report(report_on(read_job(run_dir), live=False)), LIBRARY))


def test_the_data_in_the_page_equal_a_replay_of_the_record(tmp_path: Path) -> None:
    """Issue H: a chart that is not what happened is worse than none. Every value is compared, none is rounded."""
    run_dir = ran(tmp_path, "--set", "steps=5")
    record = read_record(read_job(run_dir))
    steps = steps_of(record.events)
    (run,) = shown(run_dir)["runs"]
    assert run["curves"]["steps"] == [step.record.step for step in steps] == [1, 2, 3, 4, 5]
    names = {name for step in steps for name in step.record.metrics}
    assert set(run["curves"]["series"]) == names
    for name in names:
        assert run["curves"]["series"][name] == [step.record.metrics.get(name) for step in steps], name
    assert run["books"]["groups"]["committed"] == inspect(record).groups.committed == 10
    for at, step in enumerate(steps):
        parts = sum(run["time"][part][at] for part in run["time"])
        assert parts == pytest.approx(step.record.metrics["time/step_s"])
    assert run["samples"].keys() == {"1", "2", "3", "4", "5"}
    best, median, worst = run["samples"]["5"]
    assert (best["rank"], median["rank"], worst["rank"]) == ("best", "median", "worst")
    assert best["reward"] >= median["reward"] >= worst["reward"]
    assert run["standing"] == "finished"


def test_every_chart_has_a_line_or_a_reason(tmp_path: Path) -> None:
    (run,) = shown(ran(tmp_path))["runs"]
    for chart in CHARTS:
        curves = run["evaluations" if chart.evaluated else "curves"]
        drawn = any(name in curves["series"] for name, _ in chart.metrics)
        assert drawn != (chart.title in run["empty"]), chart.title
    assert run["empty"]["evaluation"] == "the job has no section [evaluation]"
    assert "this trainer does not report it" in run["empty"]["KL divergence, nats a token"]
    assert run["empty"]["failures"] == "no sample was masked and no group was retried"


def test_failures_are_told_by_class_with_the_first_message(tmp_path: Path) -> None:
    run_dir = ran(tmp_path, "--set", "reward.fails=reward")
    (run,) = shown(run_dir)["runs"]
    assert run["empty"]["samples"] == "no step is closed yet whose groups the record knows"
    assert run["standing"].startswith("failed: ")
    warned = {one["kind"]: one for one in run["warnings"]}
    assert warned["reward.failed"]["times"] >= 2
    assert warned["reward.failed"]["first"]


def test_what_a_tracker_did_not_take_is_told(tmp_path: Path) -> None:
    """A tracker that is down stops no run, so somebody has to hear of it."""
    run_dir = ran(tmp_path)
    line = '{"step":1,"metrics":{},"error":"ConnectionError: nobody listens"}\n'
    (Path(run_dir) / "undelivered-mlflow.jsonl").write_text(line * 3, encoding="utf-8")
    (run,) = shown(run_dir)["runs"]
    told = {"kind": "tracker.mlflow", "times": 3, "first": "ConnectionError: nobody listens"}
    assert run["warnings"] == [told]


def test_a_run_that_goes_on_is_reported(tmp_path: Path) -> None:
    """Who watches for hours looks at the page long before the end."""
    pytest.importorskip("plotly")
    with running(tmp_path, "train", "step"):
        result = invoke("report", str(tmp_path / "run"))
        assert result.exit_code == 0, result.output
        text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    (run,) = embedded(text)["runs"]
    assert run["standing"].startswith("goes on")
    assert run["curves"]["steps"] == [1]


def test_two_runs_are_laid_over_one_another(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    first, second = ran(tmp_path / "a"), ran(tmp_path / "b", "--set", "steps=3")
    output = tmp_path / "both.html"
    result = invoke("report", first, second, "-o", str(output))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"the report is {output}"
    runs = embedded(output.read_text(encoding="utf-8"))["runs"]
    assert [run["curves"]["steps"] for run in runs] == [[1, 2], [1, 2, 3]]


def test_what_a_model_writes_cannot_leave_its_script(tmp_path: Path) -> None:
    """A completion may be any text, this one too; it must neither end the data nor run."""
    hostile = "</script><script>alert(1)//<!--"
    found = msgspec.structs.replace(report_on(read_job(ran(tmp_path)), live=False), name=hostile)
    text = page(report(found), LIBRARY)
    assert text.count("<script") == text.count("</script") == 3
    assert "<!--" not in text
    assert embedded(text)["runs"][0]["name"] == hostile


def test_a_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    """It is opened on a train, and sent by mail."""
    text = page(report(report_on(read_job(ran(tmp_path)), live=False)), LIBRARY)
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)", text)
    assert "@import" not in text
    assert "@@" not in text


def test_the_chart_library_is_its_package_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)  # as where it is not installed
    why = "a report needs the chart library 'plotly', which is not installed"
    with pytest.raises(UserError, match=exactly(f"{why}: pip install 'conductor-rl[report]'")):
        chart_library()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    result = invoke("report", str(tmp_path))
    assert result.exit_code == 2
    assert "no run has begun there" in result.stderr


def test_the_timeline_lies_in_the_folder_and_is_named(tmp_path: Path) -> None:
    run_dir = ran(tmp_path)
    result = invoke("trace", run_dir)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"the timeline is {run_dir}/trace.json: ")
    events = json.loads((Path(run_dir) / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    steps = [one["name"] for one in events if one["name"].startswith("step ")]
    assert steps == ["step 1", "step 2"]
    refused = invoke("trace", run_dir, "-o", str(tmp_path / "none" / "trace.json"))
    assert refused.exit_code == 2
    assert "name another file with -o" in refused.stderr

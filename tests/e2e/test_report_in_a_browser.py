"""The report in a real browser: what it draws is what the record says, it asks for nothing, and it fits its window."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor.inspection import read_record
from conductor.loading import read_job
from conductor.past import steps_of
from conductor.review.curves import CHARTS
from conductor.review.report import RunReport, report_on
from protocols.ledger import Evaluated
from protocols.tracking import StepRecord
from tests.support.browser import Browser, Page, open_browser
from tests.unit.cli.test_asking import invoke, running
from tests.unit.cli.test_commands import JOB

pytest.importorskip("plotly")

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

WIDTHS = (480, 1400)
EVALUATED = JOB + '\n[evaluation]\nevery = 2\nsize = 2\nprompts = { kind = "tests.unit.cli.scripted:prompts" }\n'
DRAWN = """[...document.querySelectorAll("#curves .js-plotly-plot")].map((one) => ({
  title: one.parentElement.querySelector("h3").textContent,
  lines: one.data.map((line) => [line.meta, Array.from(line.x), Array.from(line.y)]) }))"""
SECTIONS = """[...document.querySelectorAll("main section")].map((one) => [one.querySelector("div").id,
  one.querySelector(".empty, .js-plotly-plot, table, pre") !== null])"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "job.toml").write_text(EVALUATED, encoding="utf-8")
    options = ("--run-dir", str(folder / "run"), "--quiet", "--set", "steps=7")
    done = invoke("run", str(folder / "job.toml"), *options)
    assert done.exit_code == 0, done.output
    return folder / "run"


def reported(*run_dirs: Path) -> Path:
    written = invoke("report", *map(str, run_dirs))
    assert written.exit_code == 0, written.output
    return run_dirs[0] / "report.html"


def opened(browser: Browser, path: Path, width: int) -> Page:
    """Show a page, and see that it is whole in itself and fits."""
    page = browser.new_page()
    page.open(path.as_uri(), width=width)
    page.wait_for("document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:")] == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it has to be moved sideways"
    page.picture(path.with_suffix(f".{width}.png"))
    return page


def replayed(run_dir: Path) -> Iterator[tuple[str, list[tuple[str, list[int], list[float | None]]]]]:
    """Every chart that is to be drawn, and its lines, from the events alone."""
    events = read_record(read_job(str(run_dir))).events
    steps = [step.record for step in steps_of(events)]
    evaluations = [event.record for event in events if isinstance(event, Evaluated)]
    for chart in CHARTS:
        lines = [line for name, _ in chart.metrics for line in line_of(name, evaluations if chart.evaluated else steps)]
        if lines:
            yield chart.title, lines


def line_of(name: str, records: list[StepRecord]) -> Iterator[tuple[str, list[int], list[float | None]]]:
    values = [record.metrics.get(name) for record in records]
    if any(value is not None for value in values):
        yield name, [record.step for record in records], values


def check_sections(page: Page, told: RunReport) -> None:
    assert dict(page.evaluate(SECTIONS)) == dict.fromkeys(
        ("curves", "time", "activity", "samples", "slowest", "failures", "incidents", "warnings", "books", "job"), True
    )
    reasons = page.evaluate("[...document.querySelectorAll('.empty')].map((one) => one.textContent)")
    assert sorted(reasons) == sorted(told.empty.values())
    assert all(reasons)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_finished_run(browser: Browser, finished: Path, width: int) -> None:
    page = opened(browser, reported(finished), width)
    drawn = {one["title"]: [tuple(line) for line in one["lines"]] for one in page.evaluate(DRAWN)}
    assert drawn == dict(replayed(finished))
    assert {"reward", "evaluation", "loss", "age of what was trained, versions"} <= drawn.keys()
    told = report_on(read_job(str(finished)), live=False)
    check_sections(page, told)
    assert of_plot(page, "time", "one.data.map((line) => [line.name, Array.from(line.y)])") == [
        [part, pytest.approx(list(seconds))] for part, seconds in told.time.items()
    ]
    busy = of_plot(page, "activity", "[one.data[0].y, one.data[0].text.map((row) => row.length)]")
    assert busy == [[row.name for row in told.activity.rows], [len(row.values) for row in told.activity.rows]]


def of_plot(page: Page, section: str, what: str) -> Any:
    return page.evaluate(f"((one) => {what})(document.querySelector('#{section} .js-plotly-plot'))")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_that_goes_on(browser: Browser, tmp_path: Path, width: int) -> None:
    """Who watches for hours opens the page long before the end."""
    with running(tmp_path, "train", "step"):
        page = opened(browser, reported(tmp_path / "run"), width)
        told = report_on(read_job(str(tmp_path / "run")), live=True)
    assert "goes on" in page.evaluate("document.querySelector('header').textContent")
    drawn = {one["title"]: [tuple(line) for line in one["lines"]] for one in page.evaluate(DRAWN)}
    assert drawn == dict(replayed(tmp_path / "run"))
    check_sections(page, told)


def test_a_step_that_is_chosen_shows_its_samples(browser: Browser, finished: Path) -> None:
    page = opened(browser, reported(finished), WIDTHS[1])
    shown = "[...document.querySelectorAll('#samples tbody tr')].map((row) => row.cells[1].textContent)"
    choose = "(select) => { select.value = 1; select.dispatchEvent(new Event('change')); }"
    told = report_on(read_job(str(finished)), live=False).samples
    assert page.evaluate(shown) == [one.sample for one in told[7]]
    page.evaluate(f"({choose})(document.querySelector('#samples select'))")
    assert page.evaluate(shown) == [one.sample for one in told[1]] != [one.sample for one in told[7]]


def test_two_runs_are_drawn_into_each_chart(browser: Browser, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(EVALUATED, encoding="utf-8")
    assert invoke("run", str(tmp_path / "job.toml"), "--run-dir", str(tmp_path / "run"), "--quiet").exit_code == 0
    page = opened(browser, reported(tmp_path / "run", finished), WIDTHS[1])
    drawn = {one["title"]: [tuple(line) for line in one["lines"]] for one in page.evaluate(DRAWN)}
    first, second = dict(replayed(tmp_path / "run")), dict(replayed(finished))
    assert drawn == {title: first[title] + second[title] for title in first}

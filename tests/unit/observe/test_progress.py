"""What people see of a run."""

import io
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from conductor.core.status import EngineStanding, RunStatus
from conductor.observe.progress import LiveProgress, PlainProgress, open_progress, result_rows, show_result
from conductor.observe.standing import Standing, now_lines
from conductor.result import Accounts, RunResult
from protocols.messages import WeightVersion
from protocols.tracking import StepRecord


def record(step: int, **metrics: float) -> StepRecord:
    return StepRecord(step=step, metrics={name.replace("__", "/"): value for name, value in metrics.items()})


FIRST = record(
    1,
    reward__mean=0.25,
    entropy=1.0123,
    throughput__samples_per_s=512.04,
    age__mean=0.0,
    time__step_s=2.0,
    groups__filtered=0.0,
)
SECOND = record(2, reward__mean=0.5, entropy=0.5, time__step_s=1.0, groups__filtered=3.0, samples__masked=2.0)


def test_the_plain_lines() -> None:
    stream = io.StringIO()
    with open_progress(4, stream, quiet=False) as progress:
        progress.phase("starting")
        progress.stepped(FIRST, Accounts())
        progress.phase("publishing")
        progress.stepped(SECOND, Accounts(admitted=12, committed=8, open=4))
        progress.stepped(record(4, entropy=-1e-9), Accounts())
        progress.phase("finishing")
    assert stream.getvalue().splitlines() == [
        "starting",
        "step 1/4  reward 0.250  entropy 1.012  512.0 samples/s  age 0.0  0:06 left",
        "step 2/4  reward 0.500  entropy 0.500  3 filtered  2 masked  4 in flight  0:03 left",
        "step 4/4  entropy 0.000  0:00 left",
        "finishing",
    ]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    with open_progress(4, stream, quiet=True) as progress:
        progress.phase("starting")
        progress.stepped(FIRST, Accounts())
    assert stream.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_a_closed_pipe_ends_the_lines_and_not_the_run() -> None:
    stream = io.StringIO()
    progress = PlainProgress(4, stream)
    stream.close()
    progress.phase("starting")
    progress.stepped(FIRST, Accounts())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with open_progress(4, stream, quiet=False) as progress:
        assert isinstance(progress, LiveProgress)
        progress.stepped(FIRST, Accounts())
        progress.stepped(SECOND, Accounts())
        progress.phase("publishing")
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as captured:
        console.print(progress)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert lines[0].startswith("step 2/4")
    assert lines[0].endswith("0:03 left")
    assert lines[1:3] == ["reward 0.500  entropy 0.500  3 filtered  2 masked", "▁█"]
    assert lines[3].endswith("publishing")
    assert "step 2/4" in stream.getvalue()


STATUS = RunStatus(
    name="demo",
    phase="training",
    step=2,
    steps=4,
    served=WeightVersion(2),
    slots=48,
    running=40,
    wanted=32,
    ready=29,
    trainer_idle=True,
    engines=(
        EngineStanding(name="rollout/0", version=WeightVersion(2), live=3),
        EngineStanding(name="rollout/1", version=WeightVersion(2), live=1),
        EngineStanding(name="rollout/2", version=WeightVersion(1)),
        EngineStanding(name="rollout/3", answers=False),
    ),
)


def drawn(progress: LiveProgress) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as captured:
        console.print(progress)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_samples_that_wait_for_a_full_server_are_told() -> None:
    engines = (EngineStanding(name="rollout/0", version=WeightVersion(2), live=9, held=5, allowed=4),)
    told = next(iter(now_lines(msgspec.structs.replace(STATUS, engines=engines))))
    assert "engines: 1 at work; 5 samples wait for their turn" in told


def test_the_live_lines_say_what_the_run_does_now() -> None:
    """Issue H: who watches for hours wants to know what is waited for, not that nothing moves."""
    progress = LiveProgress(4)
    progress.stepped(record(2, reward__mean=0.5, throughput__tokens_per_s=812.4, waste__groups=2.0), Accounts())
    progress.look(STATUS)
    lines = drawn(progress)
    assert lines[1] == "reward 0.500  812 tokens/s  2 wasted"
    slots = "40 of 48 slots lent out  29 of 32 groups ready"
    assert lines[2] == f"{slots}  engines: 2 at work, 1 behind, 1 silent"
    assert lines[-1].endswith("the trainer waits for a batch: 29 of 32 groups are graded")
    progress.phase("saving")
    assert drawn(progress)[-1].endswith("saving")


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The convention of https://no-color.org."""
    monkeypatch.setenv("TERM", "xterm")
    coloured = re.compile(r"\x1b\[(?:\d+;)*3\d")
    for no_colour in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_colour)
        stream = Terminal()
        with open_progress(4, stream, quiet=False) as progress:
            progress.stepped(FIRST, Accounts())
        assert bool(coloured.search(stream.getvalue())) != bool(no_colour)


def test_the_time_left_follows_the_last_20_steps() -> None:
    standing = Standing(5000)
    assert standing.left() is None
    for step in range(1, 101):
        standing.add(record(step, time__step_s=100.0 if step <= 80 else 1.0), Accounts())
    assert standing.left() == "1:21:40"


@given(st.lists(st.floats(-1e6, 1e6), max_size=60))
def test_the_spark_has_a_bar_a_step_the_lowest_at_the_bottom(rewards: list[float]) -> None:
    standing = Standing(100)
    for step, reward in enumerate(rewards, start=1):
        standing.add(record(step, reward__mean=reward), Accounts())
    spark, last = standing.spark(), rewards[-40:]
    assert len(spark) == len(last)
    if last:
        assert spark[last.index(min(last))] == "▁"
    if last and max(last) > min(last):
        assert spark[last.index(max(last))] == "█"


RESULT = RunResult(
    steps=2,
    metrics=(FIRST, SECOND),
    checkpoint="/runs/" + "long/" * 40 + "step-2",
    accounts=Accounts(admitted=10, committed=6, filtered=3, dropped=1),
    samples=96,
    seconds=4.0,
    dropped={"bad_prompt": 1},
    failures={"reward_raised": 5},
    run_dir="/runs/demo",
)


def test_the_final_table_accounts_for_every_group() -> None:
    assert dict(result_rows(RESULT)) == {
        "steps": "2 in 4.0 s",
        "reward": "0.250 -> 0.375 (mean of the last 2 steps)",
        "samples": "96 trained, 24.0 a second",
        "groups": "10 admitted = 6 trained + 3 filtered + 1 dropped + 0 open",
        "dropped: bad_prompt": "1 groups",
        "failed: reward_raised": "5 times",
        "checkpoint": RESULT.checkpoint,
        "run": "/runs/demo",
        "report": "conductor report /runs/demo",
    }


def test_a_path_is_never_folded_where_lines_have_no_end() -> None:
    stream = io.StringIO()
    show_result(RESULT, stream)
    assert str(RESULT.checkpoint) in stream.getvalue()


def test_a_run_without_steps_has_a_table_too() -> None:
    stream = io.StringIO()
    show_result(RunResult(steps=0, metrics=(), checkpoint=None, accounts=Accounts(), samples=0, seconds=0.0), stream)
    assert "0 admitted" in stream.getvalue()

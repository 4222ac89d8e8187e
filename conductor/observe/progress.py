"""Progress for people: live in a terminal, a plain line a step elsewhere, and a table in the end."""

import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from conductor.core.status import RunStatus
from conductor.observe.observer import Observer, Unwatched
from conductor.observe.standing import Standing, now_lines
from conductor.result import Accounts, RunResult
from protocols.tracking import StepRecord

_REFRESH_PER_S = 4
_PLAIN_WIDTH = 1000  # so that no path is folded where lines have no end


@contextmanager
def open_progress(steps: int, stream: TextIO, *, quiet: bool) -> Generator[Observer]:
    """Open what shows the progress of a run of ``steps`` steps on ``stream``."""
    if quiet:
        yield Unwatched()
    elif stream.isatty():
        progress = LiveProgress(steps)
        # what others write to stderr goes above the live lines, unless it goes elsewhere
        redirect = sys.stderr.isatty()
        console = Console(file=stream)
        with Live(progress, console=console, refresh_per_second=_REFRESH_PER_S, redirect_stderr=redirect):
            yield progress
    else:
        yield PlainProgress(steps, stream)


class PlainProgress:
    """Writes a line for each phase before the first step, and one for each step."""

    def __init__(self, steps: int, stream: TextIO) -> None:
        self._standing = Standing(steps)
        self._stream = stream

    def phase(self, name: str) -> None:
        """Write what begins, unless it is part of every step."""
        if self._standing.step in {0, self._standing.steps}:
            self._write(name)

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Write the line of one step."""
        standing = self._standing
        standing.add(record, accounts)
        facts = [f"step {standing.step}/{standing.steps}", *standing.facts()]
        left = standing.left()
        self._write("  ".join(facts if left is None else [*facts, f"{left} left"]))

    def _write(self, line: str) -> None:
        with suppress(OSError, ValueError):  # a closed pipe ends the lines, not the run
            print(line, file=self._stream, flush=True)


_: type[Observer] = PlainProgress


class LiveProgress:
    """Draws where the run stands; whoever holds it draws it again and again."""

    def __init__(self, steps: int) -> None:
        self._standing = Standing(steps)
        self._spinner = Spinner("dots")
        self._phase = "starting"
        self._now: tuple[str, ...] = ()

    def phase(self, name: str) -> None:
        """Show what begins."""
        self._phase = name
        self._now = (*self._now[:-1], name) if self._now else ()

    def look(self, status: RunStatus) -> None:
        """Show what the run does at this moment; from any thread."""
        self._now = tuple(now_lines(status))

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Show the step."""
        self._standing.add(record, accounts)

    def __rich__(self) -> RenderableType:
        standing = self._standing
        bar = Table.grid(padding=(0, 2))
        count = f"step {standing.step}/{standing.steps}"
        left = standing.left()
        bar.add_row(
            Text(count, style="bold"),
            ProgressBar(total=standing.steps, completed=standing.step, width=32),
            Text("" if left is None else f"{left} left", style="dim"),
        )
        facts = Text("  ".join(standing.facts()))
        now = self._now  # another thread may replace it meanwhile
        self._spinner.update(text=Text(now[-1] if now else self._phase, style="dim"))
        slots = [Text(line) for line in now[:-1]]
        return Group(bar, facts, *slots, Text(standing.spark(), style="green"), self._spinner)


_: type[Observer] = LiveProgress


def show_result(result: RunResult, stream: TextIO) -> None:
    """Print what a finished run came to."""
    console = Console(file=stream, width=None if stream.isatty() else _PLAIN_WIDTH, highlight=False)
    table = Table(show_header=False, title="done", title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in result_rows(result):
        table.add_row(name, value)
    with suppress(OSError, ValueError):
        console.print(table)


def result_rows(result: RunResult) -> list[tuple[str, str]]:
    """Return the final table: a name and a value each."""
    accounts = result.accounts
    rows = [("steps", f"{result.steps} in {result.seconds:.1f} s")]
    if result.reward_first is not None and result.reward_last is not None:
        last = f"{result.reward_last:.3f} (mean of the last {min(10, len(result.metrics))} steps)"
        rows.append(("reward", f"{result.reward_first:.3f} -> {last}"))
    evaluated = [done for done in result.evaluations if "eval/reward/mean" in done.metrics]
    if evaluated:
        ends = [f"{done.metrics['eval/reward/mean']:.3f} at step {done.step}" for done in (evaluated[0], evaluated[-1])]
        rows.append(("evaluation", " -> ".join(dict.fromkeys(ends))))
    kept = f"{accounts.committed} trained + {accounts.filtered} filtered"
    groups = f"{accounts.admitted} admitted = {kept} + {accounts.dropped} dropped + {accounts.open} open"
    rows += [("samples", f"{result.samples} trained, {result.samples_per_s:.1f} a second"), ("groups", groups)]
    rows += [(f"dropped: {reason}", f"{count} groups") for reason, count in sorted(result.dropped.items())]
    rows += [(f"failed: {kind}", f"{count} times") for kind, count in sorted(result.failures.items())]
    if result.checkpoint is not None:
        rows.append(("checkpoint", result.checkpoint))
    if result.run_dir is not None:
        rows += [("run", result.run_dir), ("report", f"conductor report {result.run_dir}")]
    return rows

"""Everything that a report shows of one run, from its record, its log and its job. Nothing is started."""

from pathlib import Path
from typing import Any

import msgspec

from conductor.config import RunConfig
from conductor.epilogue import ending
from conductor.inspection import Inspection, inspect, read_record
from conductor.review.activity import Activity, activity
from conductor.review.chronicle import Chronicle, Span, chronicle
from conductor.review.curves import CHARTS, Chart, Curves, evaluation_curves, parts_chart, step_curves, why_empty
from conductor.review.picks import STEPS_WITH_SAMPLES, Pick, SlowGroup, picks, slowest
from conductor.review.shares import PARTS, Part, Verdict, shares, verdict
from conductor.review.troubles import Trouble, by_event, failures, undelivered, warnings_in
from protocols.incidents import Incident
from protocols.messages import Message

_NO_TIMES = "the record has no times: it was written by an earlier version"


class Lost(Message, frozen=True, kw_only=True):
    """A failover, for people: when it began, in seconds of the run."""

    began_s: float
    workers: tuple[str, ...]
    cause: str
    level: str
    attempts: int
    verdict: str
    seconds: float
    detail: str


class RunReport(Message, frozen=True, kw_only=True):
    """One run.

    Attributes:
        name: In legends: of the job, and of the folder.
        folder: Of the run.
        standing: Where it stands, or what became of it.
        steps, seconds: Steps that count, and how long they took.
        limit: What limited it.
        books: Its accounts.
        job: As it was recorded.
        curves, evaluations: All metrics.
        time: For each step the seconds of each part.
        activity: Who worked when.
        lives: When each life of the run began.
        incidents, failures, warnings: What went wrong.
        slowest: Groups.
        samples: By step.
        empty: Title of a chart or a section -> why it is empty.
        notes: What is left out, for people.
    """

    name: str
    folder: str
    standing: str
    steps: int
    seconds: float
    limit: Verdict
    books: Inspection
    job: dict[str, Any]
    curves: Curves
    evaluations: Curves
    time: dict[Part, tuple[float, ...]]
    activity: Activity
    lives: tuple[float, ...]
    incidents: tuple[Lost, ...]
    failures: tuple[Trouble, ...]
    warnings: tuple[Trouble, ...]
    slowest: tuple[SlowGroup, ...]
    samples: dict[int, tuple[Pick, ...]]
    empty: dict[str, str]
    notes: tuple[str, ...] = ()


class Report(Message, frozen=True, kw_only=True):
    """One page: its charts, and the runs that are drawn into them."""

    charts: tuple[Chart, ...]
    runs: tuple[RunReport, ...]


def report_on(cfg: RunConfig, *, live: bool) -> RunReport:
    """Return what there is to show of the run in ``cfg.run_dir``.

    Args:
        cfg: The job that the run's folder keeps.
        live: Whether it goes on at this moment.

    Raises:
        UserError: There is no record.
        CorruptLedger: It is damaged.
    """
    folder = Path(cfg.run_dir or ".")
    record = read_record(cfg)
    told, books, warnings = chronicle(record.events), inspect(record), warnings_in(folder)
    steps = told.counted
    split = [shares(step, told) for step in steps]
    limit, busy, slow = verdict(told, max_age=cfg.max_age), activity(told), slowest(told)
    samples, curves, evaluations = picks(told, cfg.algorithm), step_curves(told), evaluation_curves(told)
    shown = RunReport(
        name=f"{cfg.name} ({folder.name})",
        folder=str(folder),
        standing=_standing(cfg, live=live),
        steps=len(steps),
        seconds=steps[-1].stepped.seconds if steps else 0.0,
        limit=limit,
        books=books,
        job=told.origin.job,
        curves=curves,
        evaluations=evaluations,
        time={part: tuple(one[part] for one in split) for part in PARTS},
        activity=busy,
        lives=tuple(told.lives),
        incidents=tuple(map(_lost, told.incidents)),
        failures=failures(told, warnings),
        warnings=(*undelivered(folder), *by_event(warnings)),
        slowest=slow,
        samples=samples,
        empty={},
        notes=tuple(_notes(told, len(samples), busy.left_out)),
    )
    return msgspec.structs.replace(shown, empty=_empty(shown, cfg))


def report(*runs: RunReport) -> Report:
    """Return the page of one run, or of several that are laid over one another."""
    return Report(charts=(*CHARTS, *parts_chart([run.curves for run in runs])), runs=runs)


def _standing(cfg: RunConfig, *, live: bool) -> str:
    if live:
        return "goes on: the page shows it as it was when it was written"
    ended, why = ending(Path(cfg.run_dir or "."))
    return {
        "finished": "finished",
        "stopped": "was stopped",
        "failed": f"failed: {why}",
        "gone": "ended without a word: it was killed, or goes on in a process that serves no socket",
    }[ended]


def _lost(span: Span) -> Lost:
    incident = span.event
    assert isinstance(incident, Incident)
    return Lost(
        began_s=span.began_s,
        workers=incident.workers,
        cause=incident.cause,
        level=incident.level,
        attempts=incident.attempts,
        verdict=incident.verdict,
        seconds=incident.seconds,
        detail=incident.detail,
    )


def _empty(shown: RunReport, cfg: RunConfig) -> dict[str, str]:
    evaluates = cfg.evaluation is not None
    empty = {
        chart.title: why_empty(chart, shown.evaluations if chart.evaluated else shown.curves, evaluates=evaluates)
        for chart in (*CHARTS, *parts_chart([shown.curves]))
    }
    reasons = {
        "time": (shown.steps, "no step is closed yet"),
        "activity": (shown.activity.rows, _NO_TIMES if shown.steps else "nothing was generated yet"),
        "incidents": (shown.incidents, "no worker was lost"),
        "failures": (shown.failures, "no sample was masked and no group was retried"),
        "warnings": (shown.warnings, "the log holds no warning"),
        "slowest": (shown.slowest, _NO_TIMES if shown.steps else "no group is graded yet"),
        "samples": (shown.samples, "no step is closed yet whose groups the record knows"),
    }
    empty |= {name: reason for name, (there, reason) in reasons.items() if not there}
    return {name: reason for name, reason in empty.items() if reason}


def _notes(told: Chronicle, with_samples: int, engines_left_out: int) -> list[str]:
    notes: list[str] = []
    if told.compacted:
        notes.append("the oldest events were summed up at a checkpoint: groups and samples are shown since then")
    if with_samples == STEPS_WITH_SAMPLES or with_samples < sum(bool(step.attempts) for step in told.counted):
        notes.append(f"samples are shown of {with_samples} steps, evenly apart; inspect --step tells of any")
    if engines_left_out:
        notes.append(f"{engines_left_out} more engines are not shown")
    return notes

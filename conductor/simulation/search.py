"""The fault search: many small runs, each with its own schedule and faults, and the laws asked of each."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from conductor.config import RunConfig
from conductor.simulation.laws import LONGEST_S, broken
from conductor.simulation.life import Life, live
from conductor.simulation.shapes import Schedule, draw
from protocols.faults import AT_A_MOMENT, KINDS, Fault, FaultKind, FaultPlan

STAGES = ("run", "admit", "rollout", "reward", "batch", "train", "publish", "evaluate", "abort", "idle")
"""Where a fault may hit; ``run`` begins and ends a run, ``abort`` stops leased work, ``idle`` is between two calls."""

_HORIZON_S = 20 * LONGEST_S
_BESIDE = "prompts lie beside the controller: no message of theirs goes astray"
_NO_CALL = "it calls nobody: it decides and writes"
_ONE_CALL = "it makes one such call at a time: no two replies can change places"
_NO_VERSION = "nothing there names a weight version"
_NO_PAYLOAD = "it fetches no payload"
_NO_LOAD = "only publishing loads weights"
_NO_RECORD = "it writes what evaluations came to, at most"
_NO_TIME = "its calls take no time, unless another fault holds them up"
_NEEDS_CALL = "only a preemption and a notice of one need no call"
_ONLY_TOLD = "notice is no call, and breaks none"

_MESSAGE = {"admit": _BESIDE, "batch": _NO_CALL}
_ELSEWHERE: Mapping[FaultKind, Mapping[str, str]] = {
    "crash": _MESSAGE,
    "preemption": {"run": _NO_TIME, "admit": _BESIDE, "batch": _NO_CALL, "abort": _NO_TIME},
    "notice": {stage: _ONLY_TOLD for stage in STAGES if stage != "idle"},
    "hang": {},
    "slow": {"batch": _NO_CALL},
    "lost_request": _MESSAGE,
    "lost_reply": _MESSAGE,
    "doubled_reply": _MESSAGE,
    "reordered_replies": {**_MESSAGE, **dict.fromkeys(("run", "train", "publish", "abort"), _ONE_CALL)},
    "wrong_version": {**_MESSAGE, "reward": _NO_VERSION, "abort": _NO_VERSION},
    "partial_publish": dict.fromkeys(
        ("run", "admit", "rollout", "reward", "batch", "train", "evaluate", "abort"), _NO_LOAD
    ),
    "corrupt_payload": dict.fromkeys(("run", "admit", "rollout", "batch", "abort"), _NO_PAYLOAD),
    "slow_ledger": {"publish": _NO_RECORD, "evaluate": _NO_RECORD, "abort": "what it writes counts as its stage's"},
}
IMPOSSIBLE: Mapping[FaultKind, Mapping[str, str]] = {
    kind: elsewhere if kind in AT_A_MOMENT else {**elsewhere, "idle": _NEEDS_CALL}
    for kind, elsewhere in _ELSEWHERE.items()
}
"""Fault and stage -> why it cannot happen there."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A run that broke a law.

    Attributes:
        seed: Replays it, with the plan.
        plan: What went wrong, shrunk to what it takes.
        broken: What it broke.
    """

    seed: int
    plan: str
    broken: tuple[str, ...]


class Findings(msgspec.Struct, kw_only=True):
    """What a search found.

    Attributes:
        runs: How many there were.
        finished: How many of them finished all the same.
        hits: ``kind/stage`` -> how often a fault of that kind hit that stage.
        endings: What ended the runs that did not finish, by class.
        found: Runs that broke a law.
    """

    runs: int = 0
    finished: int = 0
    hits: dict[str, int] = {}
    endings: dict[str, int] = {}
    found: list[Found] = []

    def add(self, other: "Findings") -> None:
        """Take in what another part of the search found."""
        self.runs += other.runs
        self.finished += other.finished
        self.hits = dict(Counter(self.hits) + Counter(other.hits))
        self.endings = dict(Counter(self.endings) + Counter(other.endings))
        self.found = sorted([*self.found, *other.found], key=lambda one: one.seed)

    def untouched(self) -> list[tuple[FaultKind, str]]:
        """Return the possible cells of the table that nothing hit."""
        return [
            (kind, stage)
            for kind in KINDS
            for stage in STAGES
            if stage not in IMPOSSIBLE[kind] and not self.hits.get(f"{kind}/{stage}")
        ]


def run_schedule(schedule: Schedule, *, trace: bool = False) -> Life:
    """Run one schedule."""
    return live(schedule.cfg, seed=schedule.seed, faults=schedule.plan, trace=trace, horizon_s=_HORIZON_S)


def search(job: RunConfig, seeds: range, plan: FaultPlan | None) -> Findings:
    """Run one schedule for each seed and ask the laws of it.

    Args:
        job: Decides; its sizes are drawn.
        seeds: Of the schedules.
        plan: What goes wrong in each of them; None draws that too.
    """
    findings = Findings(hits={}, endings={}, found=[])
    hits: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    for seed in seeds:
        schedule = draw(job, seed, plan)
        life = run_schedule(schedule)
        findings.runs += 1
        findings.finished += life.result is not None
        hits.update(f"{schedule.plan.faults[hit.index].kind}/{hit.stage}" for hit in life.observed.hits)
        if life.error is not None:
            endings[type(life.error).__name__] += 1
        if lines := broken(life, schedule.plan):
            smallest, lines = shrink(schedule, lines)
            findings.found.append(Found(seed=seed, plan=str(smallest), broken=lines))
    findings.hits, findings.endings = dict(hits), dict(endings)
    return findings


def shrink(schedule: Schedule, lines: tuple[str, ...]) -> tuple[FaultPlan, tuple[str, ...]]:
    """Make the plan of a run that broke a law smaller, as long as it still breaks one.

    Returns:
        A plan of which no fault can be left out, nor last shorter, and what it breaks.
    """
    plan, smaller = schedule.plan, True
    while smaller:
        smaller = False
        for candidate in _smaller(plan):
            life = run_schedule(Schedule(seed=schedule.seed, cfg=schedule.cfg, plan=candidate))
            if still := broken(life, candidate):
                plan, lines, smaller = candidate, still, True
                break
    return plan, lines


def _smaller(plan: FaultPlan) -> Iterator[FaultPlan]:
    """Yield plans without one of the faults, then with one that lasts less, or comes at any worker."""
    faults = plan.faults
    for index, fault in enumerate(faults):
        yield FaultPlan(faults=(*faults[:index], *faults[index + 1 :]))
        for simpler in _simpler(fault):
            yield FaultPlan(faults=(*faults[:index], simpler, *faults[index + 1 :]))


def _simpler(fault: Fault) -> Iterator[Fault]:
    change = partial(msgspec.structs.replace, fault)
    for seconds in (0.0, 1.0, fault.lasts_s / 2):
        if seconds < fault.lasts_s:
            yield change(lasts_s=seconds)
    if fault.call is not None and fault.call > 1:
        yield change(call=fault.call - 1)

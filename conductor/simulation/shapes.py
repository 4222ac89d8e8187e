"""Small jobs and fault plans, drawn from a seed: what the fault search tries."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from conductor.config import Deadlines, EvaluationConfig, RunConfig
from conductor.core.staleness import SAMPLERS
from conductor.simulation.life import in_simulation
from protocols.faults import AT_A_MOMENT, KINDS, METHODS, Fault, FaultKind, FaultPlan
from protocols.inference import PublishMode
from protocols.messages import WorkerId

_DEADLINES = Deadlines(
    start=60.0,
    prompt=30.0,
    group=60.0,
    reward=30.0,
    train=60.0,
    publish=30.0,
    checkpoint=60.0,
    record=30.0,
    evaluation=200.0,
    abort=10.0,
    reconcile=120.0,
)
_WORKERS = {"Trainer": "policy/0", "RolloutExecutor": "episode/0", "Grader": "reward/0"}


def _places() -> Iterator[tuple[FaultKind, str]]:
    """Yield each place of each kind, more often where a kind has few places, or a place many stages."""
    for kind in KINDS:
        for method in METHODS[kind]:
            often = 6 if method == "Ledger.append" else min(4, 12 // len(METHODS[kind]) or 1)
            for _ in range(often):
                yield kind, method


_PLACES = tuple(_places())

_ABORTS: tuple[tuple[FaultKind, str], ...] = (("lost_request", "RolloutExecutor.generate"),)
_IN_DOUBT: tuple[tuple[FaultKind, str], ...] = (("lost_reply", "Trainer.train_step"),)
_NOT_DONE: tuple[tuple[FaultKind, str], ...] = (("lost_request", "Trainer.train_step"),)
_LEADS_TO: Mapping[str, tuple[tuple[FaultKind, str], ...]] = {
    "abort": _ABORTS,
    "live_requests": _ABORTS,
    "outcome": _IN_DOUBT,
    "discard": _NOT_DONE,
}
"""Method that only a run in trouble calls -> the trouble."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One run of the search.

    Attributes:
        seed: All of it comes from there, the order of ready tasks included.
        cfg: The job.
        plan: What goes wrong.
    """

    seed: int
    cfg: RunConfig
    plan: FaultPlan


def draw(job: RunConfig, seed: int, plan: FaultPlan | None) -> Schedule:
    """Draw a small job like ``job``, and what goes wrong in it.

    Args:
        job: Its algorithm, filter and remainder are kept; its sizes and policies are not.
        seed: Of the draw.
        plan: What goes wrong; None draws that too.
    """
    stream = random.Random(f"{seed}/shape")
    engines = stream.choice((1, 2, 2, 3))
    policies = random.Random(f"{seed}/policies")
    cfg = in_simulation(
        msgspec.structs.replace(
            job,
            name="search",
            seed=seed,
            steps=stream.randint(1, 4),
            batch_groups=stream.randint(1, 3),
            group_size=stream.randint(2, 3),
            max_age=stream.choice((0, 0, 1, 2)),
            staleness=policies.choice(tuple(SAMPLERS)),
            publish=policies.choice(get_args(PublishMode)),
            slots=stream.choice((None, None, 1, 2, 5)),
            engines=engines,
            attempts=stream.randint(2, 4),
            deadlines=_DEADLINES,
        ),
        _options(stream),
    )
    cfg = msgspec.structs.replace(cfg, evaluation=_evaluation(policies, engines))
    if plan is None:
        plan = draw_plan(random.Random(f"{seed}/faults"), engines)
    return Schedule(seed=seed, cfg=cfg, plan=plan)


def _evaluation(stream: random.Random, engines: int) -> EvaluationConfig | None:
    """Draw what is evaluated beside the training, on engines of its own where there are more than one."""
    if stream.random() < 0.5:
        return None
    return EvaluationConfig(
        every=stream.choice((0, 1, 2)),
        samples=stream.choice((1, 2)),
        slots=stream.choice((1, 4)),
        engines=stream.choice((None, 1)) if engines > 1 else None,
    )


def _options(stream: random.Random) -> dict[str, Any]:
    """Draw a world."""
    return {
        "sample": stream.choice(("constant:1.0", "lognormal:1.0", "constant:0.0", "lognormal:0.5:4")),
        "slots": stream.randint(1, 6),
        "slowdown": stream.choice((0.0, 0.1)),
        "train": stream.choice(("1.0", "0.0", "5.0", "lognormal:1.0")),
        "publish": stream.choice(("0.0", "0.5", "3.0")),
        "reward": stream.choice(("0.0", "0.5", "lognormal:0.5")),  # never longer than a grader may take
    }


def draw_plan(stream: random.Random, engines: int) -> FaultPlan:
    """Draw up to three faults for a run with so many engines, and what it takes to reach them."""
    places = stream.choices(_PLACES, k=stream.choice((1, 1, 2, 3)))
    before = [place for _, method in places for place in _LEADS_TO.get(method.rpartition(".")[2], ())[:1]]
    return FaultPlan(faults=tuple(_draw_fault(stream, kind, method, engines) for kind, method in [*before, *places]))


def _draw_fault(stream: random.Random, kind: FaultKind, method: str, engines: int) -> Fault:
    at_a_moment = kind in AT_A_MOMENT or stream.random() < 0.2
    return Fault(
        kind=kind,
        method=method,
        worker=stream.choice((None, *_workers(method, engines))),
        call=None if at_a_moment else _rank(stream, method),
        at_s=round(stream.uniform(0.0, 12.0), 2) if at_a_moment else None,
        lasts_s=stream.choice((0.0, 0.5, 3.0, 20.0, 45.0)),
    )


def _rank(stream: random.Random, method: str) -> int:
    """Return which call of a method fails: one of the first, for few runs make many."""
    if method.startswith(("Ledger", "Payload")):
        return stream.randint(1, 40)
    return 1 if method.rpartition(".")[2] in _LEADS_TO else min(stream.randint(1, 8), stream.randint(1, 8))


def _workers(method: str, engines: int) -> Sequence[WorkerId]:
    """Return who answers a method; nobody by name where the method is no worker's."""
    port = method.partition(".")[0]
    if port == "Engine":
        return tuple(WorkerId(f"rollout/{number}") for number in range(engines))
    return (WorkerId(_WORKERS[port]),) if port in _WORKERS else ()

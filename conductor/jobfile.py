"""The job that a run folder keeps, so that a resume needs nothing else; and what of it must not change."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from conductor.config import RunConfig
from conductor.wording import shown
from protocols.errors import Problem
from protocols.sections import Section

JOB_FILE = "job.json"

_FREE = frozenset({
    "steps", "slots", "attempts", "retries", "max_dropped", "checkpoint", "deadlines", "lag_interval_s", "freeze_gc",
    "run_dir", "job_dir", "engine", "engines", "fleet", "backend", "ledger", "trackers", "evaluation",
})  # fmt: skip
"""What may be another at a resume: how long and where the run goes on, but not what is trained or how."""


def holds_run(folder: Path) -> bool:
    """Return whether a run has begun in a folder."""
    return (folder / JOB_FILE).exists()


def job_values(cfg: RunConfig) -> dict[str, Any]:
    """Return a job as built-in values, as a job file has them: the options of a section beside its kind."""
    values: dict[str, Any] = {name: as_in_file(value) for name, value in msgspec.structs.asdict(cfg).items()}
    kept = {name: value for name, value in values.items() if value is not None}
    return msgspec.json.decode(msgspec.json.encode(kept), type=dict[str, Any])


def as_in_file(value: Any) -> Any:
    """Return a message as built-in values, as a file has it: the options of a section beside its kind."""
    match value:
        case Section(kind=kind, options=options):
            return {"kind": kind, **options}
        case msgspec.Struct():
            return {name: as_in_file(one) for name, one in msgspec.structs.asdict(value).items()}
        case dict():
            return {name: as_in_file(one) for name, one in cast("dict[str, Any]", value).items()}
        case tuple():
            return [as_in_file(one) for one in cast("tuple[Any, ...]", value)]
        case _:
            return value


def write_job(cfg: RunConfig, folder: Path) -> None:
    """Write the job into the run's folder, whole or not at all."""
    aside = folder / f".{JOB_FILE}"
    with aside.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(job_values(cfg)), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(folder / JOB_FILE)


def find_changes(cfg: RunConfig, began_as: Mapping[str, Any]) -> list[Problem]:
    """Find what a resume may not change.

    Args:
        cfg: The job that is to go on.
        began_as: ``job_values`` of the job that the run began with.
    """
    was = dict(_leaves(_fixed(began_as)))
    now = dict(_leaves(_fixed(job_values(cfg))))
    return [_changed(field, was.get(field), now.get(field)) for field in sorted(was.keys() | now.keys())
            if was.get(field) != now.get(field)]  # fmt: skip


def _fixed(job: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name not in _FREE}


def _leaves(values: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(cast("Mapping[str, Any]", value), f"{under}{name}.")
        else:
            yield f"{under}{name}", value


def _changed(field: str, was: Any, now: Any) -> Problem:
    said = "left it out" if was is None else f"had {shown(was)}"
    mend = "leave it out" if was is None else f"set it back to {shown(was)}"
    value = None if now is None else shown(now)
    return Problem(
        field=field,
        value=value,
        why=f"the run began with another job, which {said}",
        mend=f"{mend}, or begin a new run in another folder",
    )

"""The plan that a run is launched by: made of what the backend has, or given and checked; and its file."""

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from conductor.config import RunConfig
from conductor.core.planning.plan import plan
from conductor.core.planning.verify import verify
from conductor.decoding import decode
from conductor.disk import on_disk
from conductor.jobfile import as_in_file
from conductor.loading import read_file
from protocols.backend import Inventory
from protocols.errors import ConfigError
from protocols.fleet import Plan

PLAN_FILE = "plan.json"


def planned(
    cfg: RunConfig,
    inventory: Inventory,
    given: Collection[str],
    made: Plan | None = None,
    aside: Collection[str] = (),
) -> Plan:
    """Return the plan that a run is launched by.

    Args:
        cfg: The job.
        inventory: What there is.
        given: Sections whose workloads are handed over in code.
        made: A plan to check, edited or not; None: one is made.
        aside: Failure domains that get no workers, as long as there is room without them.

    Raises:
        ConfigError: There is no plan, or the one that was made is none of this job on these nodes.
    """
    if made is None:
        found = plan(cfg, without(inventory, aside), given)
        if not isinstance(found, Plan) and aside:
            found = plan(cfg, inventory, given)
        if isinstance(found, Plan):
            return found
        raise ConfigError(found)
    if problems := verify(made, cfg, inventory, given):
        raise ConfigError(problems)
    return made


def without(inventory: Inventory, aside: Collection[str]) -> Inventory:
    """Return what there is outside of some failure domains; all of it, where nothing is."""
    nodes = tuple(node for node in inventory.nodes if (node.domain or node.name) not in aside)
    return msgspec.structs.replace(inventory, nodes=nodes or inventory.nodes)


async def write_plan(fleet: Plan, cfg: RunConfig) -> None:
    """Keep the plan in the run's folder, where there is one.

    Raises:
        DeadlineExceeded: The disk hangs.
    """
    if cfg.run_dir is not None:
        path = Path(cfg.run_dir) / PLAN_FILE
        await on_disk("keeping the plan", cfg.deadlines.record, lambda: path.write_bytes(plan_bytes(fleet)))


def plan_bytes(fleet: Plan) -> bytes:
    """Return a plan as its file has it: JSON, the options of an adapter beside its kind."""
    return msgspec.json.format(msgspec.json.encode(as_in_file(fleet)), indent=2) + b"\n"


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan from a file; whether it fits a job is another matter.

    Raises:
        ConfigError: It is none; it holds every problem.
    """
    fleet, problems = decode(Plan, read_file(Path(path), field="--plan"))
    if fleet is None:
        raise ConfigError(problems)
    return fleet

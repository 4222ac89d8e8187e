"""The payload spool: what graded groups hold lies in the run's folder until they are trained, for a resume to find.

A file is named by its attempt, ``L17.0``, so no attempt is ever taken for another. A group whose file is missing or
damaged is generated anew: the spool saves work, and nothing is lost with it.
"""

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from conductor.context import RunContext
from conductor.core.lease import Lease
from conductor.disk import on_disk
from protocols.errors import PortFailed, Transient
from protocols.ledger import Restored
from protocols.messages import LeaseId, lease_number
from protocols.rollouts import GroupReceipt

FOLDER = "spool"
_NAME = re.compile(r"\.?L(\d+)\.(\d+)")  # with a dot before it while it is written


def is_kept(ctx: RunContext) -> bool:
    """Whether finished groups are to outlive the process."""
    return ctx.cfg.run_dir is not None and ctx.cfg.checkpoint.durability == "groups"


async def open_spool(ctx: RunContext) -> None:
    """Make the folder and tidy it; where no groups are kept, remove it.

    Raises:
        PortFailed: The disk refuses.
    """
    if ctx.cfg.run_dir is None:
        return
    folder = _folder(ctx.cfg.run_dir)
    try:
        if is_kept(ctx):
            await on_disk("making the spool", ctx.cfg.deadlines.record, lambda: folder.mkdir(exist_ok=True))
        elif folder.exists():
            await on_disk("removing the spool", ctx.cfg.deadlines.record, lambda: shutil.rmtree(folder))
    except OSError as exc:
        raise PortFailed(f"the spool {folder} cannot be made or removed: {exc}") from exc
    await sweep(ctx)


async def keep(ctx: RunContext, receipt: GroupReceipt) -> None:
    """Write down what a group holds that is about to be graded. Where that fails, the run goes on."""
    if not is_kept(ctx):
        return
    try:
        await ctx.ports.backend.payloads.spool(receipt.payload, _path(ctx, receipt.lease_id, receipt.attempt))
    except (Transient, PortFailed) as exc:
        ctx.log.warning("group.not_spooled", lease_id=receipt.lease_id, error=str(exc))


async def take_back(ctx: RunContext, lease: Lease) -> bool:
    """Let a reopened group be graded as it was, if it may still be trained; return whether that could be done."""
    if not (is_kept(ctx) and lease.grades and _may_be_trained(ctx, lease)):
        return False
    receipt = lease.finished_receipt
    try:
        await ctx.ports.backend.payloads.unspool(receipt.payload, _path(ctx, lease.lease_id, lease.attempt))
    except (Transient, PortFailed) as exc:
        ctx.log.warning("group.not_restored", lease_id=lease.lease_id, error=str(exc))
        return False
    ctx.window.graded(receipt, lease.grades)
    ctx.log.info("group.restored", lease_id=lease.lease_id, samples=lease.group_size, tokens=lease.tokens)
    await ctx.record(Restored(lease_id=lease.lease_id))
    return True


async def sweep(ctx: RunContext) -> None:
    """Remove the files of attempts that are settled, aborted or begun anew."""
    if ctx.cfg.run_dir is None or not is_kept(ctx):
        return
    folder, admitted = _folder(ctx.cfg.run_dir), lease_number(ctx.table.next_lease_id())
    attempts = {lease_number(lease.lease_id): lease.attempt for lease in ctx.table}
    try:
        await on_disk("tidying the spool", ctx.cfg.deadlines.record, lambda: _remove(folder, attempts, admitted))
    except OSError as exc:
        ctx.log.warning("spool.not_swept", error=str(exc))


def _may_be_trained(ctx: RunContext, lease: Lease) -> bool:
    """Whether the admission law would grant the group now under the weights that made it: then no age is exceeded."""
    law = replace(ctx.admission, version=lease.version - ctx.first_version)
    return law.grants(ctx.table.tally, accepted=ctx.table.accepted, running=ctx.table.running) > 0


def _remove(folder: Path, attempts: Mapping[int, int], admitted: int) -> None:
    """Remove what is of no use, given the attempts of the open leases and how many were admitted at that moment."""
    for path in folder.iterdir():
        if found := _NAME.fullmatch(path.name):
            number, attempt = map(int, found.groups())
            if number < admitted and attempt < attempts.get(number, math.inf):
                path.unlink()


def _folder(run_dir: str) -> Path:
    return Path(run_dir) / FOLDER


def _path(ctx: RunContext, lease_id: LeaseId, attempt: int) -> str:
    return str(_folder(ctx.cfg.run_dir or "") / f"{lease_id}.{attempt}")

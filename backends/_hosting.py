"""Opening a workload, wherever it is hosted."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from backends._answering import Answering
from protocols.adapters import Host, UnknownAdapter, resolve
from protocols.backend import WorkloadSpec
from protocols.errors import ConductorError, PortFailed, UserError
from protocols.grading import GraderPort
from protocols.inference import EnginePort
from protocols.roles import RolePort, Roles, RolesPort
from protocols.rollouts import RolloutExecutorPort
from protocols.training import RankPort

PORTS: dict[str, type] = {
    "engine": EnginePort,
    "train": RankPort,
    "reward": GraderPort,
    "episode": RolloutExecutorPort,
    "role": RolePort,
}
"""Section of the job -> the port of the workloads that it names."""


def opened(spec: WorkloadSpec, host: Host, roles: RolesPort | None = None) -> AbstractAsyncContextManager[Any]:
    """Return the context of a workload's adapter, not entered yet.

    Args:
        spec: The workload; its place in the plan is added to what ``host`` says.
        host: What it finds there.
        roles: How it reaches the other workers.

    Raises:
        UserError: There is no such adapter, or its options are wrong.
    """
    try:
        adapter = resolve(spec.section, spec.adapter.kind, spec.site.job_dir)
        cfg = msgspec.convert(spec.adapter.options, adapter.Config)
    except UnknownAdapter as exc:
        raise UserError(str(exc.problem)) from exc
    except msgspec.ValidationError as exc:
        raise UserError(f"the options of [{spec.section}] do not fit {spec.adapter.kind!r}: {exc}") from exc
    others = None if roles is None else Roles(roles, spec.worker_id)
    context = adapter.open(cfg, replace(host, devices=spec.devices, ranks=spec.ranks, roles=others))
    return _answering(spec, context) if spec.section == "role" else context


@asynccontextmanager
async def _answering(spec: WorkloadSpec, context: AbstractAsyncContextManager[Any]) -> AsyncGenerator[RolePort]:
    async with context as workload:
        yield Answering(spec.worker_id, workload)


def not_opened(spec: WorkloadSpec, failure: Exception | None) -> ConductorError:
    """Return the error of a launch that failed; None: it was killed meanwhile."""
    if isinstance(failure, ConductorError):
        return failure
    why = described(failure) if failure else "it was killed meanwhile"
    return PortFailed(f"worker {spec.worker_id} ({spec.section}.{spec.adapter.kind}) could not be opened: {why}")


def described(failure: BaseException) -> str:
    """Return one line about a failure; of a group, about what is in it."""
    if isinstance(failure, BaseExceptionGroup):
        return "; ".join(described(one) for one in failure.exceptions)
    return f"{type(failure).__name__}: {failure}"

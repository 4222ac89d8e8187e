"""One run: its log, its control socket, the first failure out, nothing left behind; its lives are in ``life``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from conductor.bootstrap import open_ports
from conductor.config import RoleConfig, RunConfig
from conductor.control.desk import Desk
from conductor.control.server import open_control
from conductor.core.planning.wishes import POLICY
from conductor.core.quarantine import Quarantine
from conductor.core.waits import Waits
from conductor.failures import Failures
from conductor.fleet.hooks import Hooks
from conductor.fleet.rewinding import Rewinding
from conductor.life import conduct, make_context
from conductor.observe.guarded import Guarded
from conductor.observe.log import open_log
from conductor.observe.observer import Observer
from conductor.ports import Workloads
from conductor.result import RunResult
from protocols.aio import clock
from protocols.backend import Backend
from protocols.errors import StateLost, Stopped
from protocols.fleet import Plan

T = TypeVar("T")


async def run(
    cfg: RunConfig,
    *,
    backend: Backend | None,
    workloads: Workloads,
    observer: Observer,
    to_stderr: bool,
    resume: bool = False,
    control: bool = False,
    plan: Plan | None = None,
    hooks: Sequence[object] = (),
) -> RunResult:
    """Conduct one run of a job without problems; see ``Conductor.run``."""
    waits = Waits(clock())
    desk = Desk(cfg, waits)
    with open_log(cfg.run_dir, to_stderr=to_stderr) as log:
        watcher = Guarded(observer, log)
        lives = _Lives(
            cfg=cfg, backend=backend, workloads=workloads, plan=plan, hooks=hooks, observer=watcher, desk=desk,
            waits=waits, log=log, rewinding=Rewinding(POLICY, cfg.fleet.roles.get(POLICY, RoleConfig()).restarts),
        )  # fmt: skip
        try:
            async with open_control(cfg.run_dir if control else None, desk.answer, log):
                return await lives.run(resume=resume)
        except BaseException as exc:
            _log_end(log, exc)
            raise
        finally:
            watcher.conclude()


@dataclass(frozen=True, kw_only=True)
class _Lives:
    """One life, unless what was trained is lost: then another goes on from the last checkpoint.

    It has ports of its own, as a resume in another process would; the rest outlives it.
    """

    cfg: RunConfig
    backend: Backend | None
    workloads: Workloads
    plan: Plan | None
    hooks: Sequence[object]
    observer: Observer
    desk: Desk
    waits: Waits
    log: FilteringBoundLogger
    rewinding: Rewinding
    quarantine: Quarantine = field(default_factory=Quarantine)

    async def run(self, *, resume: bool) -> RunResult:
        """Live until the run is done, or given up, or stopped."""
        with self.desk.scope:
            while True:
                self.observer.phase("starting")
                try:
                    result = await self._live(resume=resume)
                except StateLost as exc:
                    lost = exc
                except Exception as exc:
                    self.rewinding.explain(exc)
                    raise
                else:
                    self.log.info("run.finished", steps=result.steps)
                    return result
                await self.rewinding.go_back()
                self.log.warning("run.went_back", lost=str(lost))
                resume = True
        raise Stopped(f"{self.cfg.name} was asked to stop")

    async def _live(self, *, resume: bool) -> RunResult:
        failures = Failures()
        try:
            async with open_ports(
                self.cfg,
                backend=self.backend,
                workloads=self.workloads,
                waits=self.waits,
                resume=resume,
                plan=self.plan,
                quarantine=self.quarantine,
                hooks=Hooks(self.hooks, patience_s=self.cfg.fleet.answer_s, log=self.log),
                log=self.log,
            ) as ports:
                ctx = make_context(self.cfg, ports, self.waits, log=self.log, observer=self.observer, failures=failures)
                ctx.rewinding = self.rewinding
                with self.desk.attend(ctx), failures.watch("the run"):
                    return await conduct(ctx)
        except BaseExceptionGroup as group:
            verdict = failures.verdict(group)
        raise verdict


def _log_end(log: FilteringBoundLogger, error: BaseException) -> None:
    if isinstance(error, Exception) and not isinstance(error, Stopped):
        log.error("run.failed", error=type(error).__name__, message=str(error))
    else:
        log.info("run.stopped", cause=type(error).__name__)

"""The one entry point."""

from collections.abc import Sequence

import msgspec

from conductor import runtime
from conductor.config import RunConfig
from conductor.fleet.users import make
from conductor.observe.observer import Observer, Unwatched
from conductor.ports import Workloads
from conductor.result import RunResult
from conductor.validation import find_problems, make_folder, site_of
from protocols.backend import Backend
from protocols.errors import ConfigError
from protocols.fleet import Plan


class Conductor:
    """Conducts a run."""

    @staticmethod
    async def run(
        cfg: RunConfig,
        *,
        backend: Backend | None = None,
        workloads: Workloads | None = None,
        observer: Observer | None = None,
        to_stderr: bool = False,
        resume: bool = False,
        control: bool = False,
        plan: Plan | None = None,
        hooks: Sequence[object] = (),
    ) -> RunResult:
        """Run a job to its end.

        Args:
            cfg: From ``load_config``, or made in code.
            backend: Where workloads are hosted, made by hand; None opens the one that the job names.
            workloads: Workloads made by hand, in place of the job's sections; they stay the caller's to close.
            observer: Is told of phases and steps.
            to_stderr: Write log lines for people to standard error as well.
            resume: Go on with the run that ``cfg.run_dir`` holds, from its last complete checkpoint; where it holds
                none, begin.
            control: Serve a socket in ``cfg.run_dir``, over which ``conductor status``, ``why``, ``stop`` and
                ``checkpoint`` ask this run.
            plan: Where workers run, from ``conductor plan`` and edited or not; None: it is made.
            hooks: Objects that are told of the worker groups, after those that the job names; see
                ``conductor.fleet.hooks.POINTS``.

        Returns:
            What was trained, and where every admitted group ended.

        Cancelling: what is lent out is aborted, under a shield of twice ``deadlines.abort`` seconds, and what was
        trained is saved, under one of ``deadlines.checkpoint``; then the cancellation goes on. Nothing that the run
        started is alive afterwards. Signals are the caller's.

        Raises:
            ConfigError: The job cannot start, or there is no place for its workers; all of its problems at once,
                before any worker is started.
            Stopped: It was asked to stop over its socket. It ended as if it had been cancelled.
            ConductorError: The first failure, the others as notes; ``exit_code`` says its class.
        """
        workloads = workloads or Workloads()
        given = {*workloads.sections(), *(["backend"] if backend else [])}
        problems = find_problems(cfg, given=given, resume=resume)
        if problems:
            raise ConfigError(problems)
        site = site_of(cfg)
        cfg = msgspec.structs.replace(cfg, job_dir=site.job_dir, run_dir=site.run_dir)
        if cfg.run_dir is not None and (problem := make_folder(cfg.run_dir)):
            raise ConfigError([problem])
        named = enumerate(cfg.fleet.hooks)
        made = [make(f"fleet.hooks[{number}]", section, site.job_dir) for number, section in named]
        return await runtime.run(
            cfg,
            backend=backend,
            workloads=workloads,
            observer=observer or Unwatched(),
            to_stderr=to_stderr,
            resume=resume,
            control=control,
            plan=plan,
            hooks=(*made, *hooks),
        )

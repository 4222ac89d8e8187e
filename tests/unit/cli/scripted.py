"""Scripted workloads as adapters, ``tests.unit.cli.scripted:train``: whole runs by job file, without torch."""

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from backends.sim.grader import ScriptedGrader, alternating
from backends.sim.prompts import ScriptedPrompts
from backends.sim.trainer import ScriptedTrainer
from protocols.adapters import Host
from protocols.errors import InvariantError, Problem
from protocols.grading import GradeFault, GradeRequest
from protocols.messages import Message
from protocols.sections import Site
from tests.support.scripted.engine import ScriptedEngine
from tests.support.scripted.executor import ScriptedExecutor


class Config(Message, frozen=True, kw_only=True):
    """Options of all of them.

    Attributes:
        fails: ``reward`` fails on every sample; ``rule`` and ``bug`` make the trainer raise.
        hangs: No group is ever finished.
        stuck: ``open``, ``publish``, ``step`` or ``save``: where it gets stuck while the file ``stuck`` lies in the
            job's folder; it leaves the file ``reached`` there. A save goes on after a second.
    """

    fails: str = ""
    hangs: bool = False
    stuck: str = ""


@dataclass(frozen=True)
class Adapter:
    make: Callable[[Config, Host], Any]
    Config: type[Config] = Config

    def check(self, _cfg: Config, _site: Site) -> Sequence[Problem]:
        return ()

    def open(self, cfg: Config, host: Host) -> AbstractAsyncContextManager[Any]:
        return _open(self.make(cfg, host), cfg, host)


@asynccontextmanager
async def _open(port: Any, cfg: Config, host: Host) -> AsyncGenerator[Any]:
    if cfg.stuck == "open":
        await _get_stuck(host, math.inf)
    yield port


async def _get_stuck(host: Host, seconds: float) -> None:
    folder = Path(host.site.job_dir)
    if (folder / "stuck").exists():
        (folder / "reached").touch()
        await anyio.sleep(seconds)


class _StuckTrainer(ScriptedTrainer):
    def __init__(self, cfg: Config, host: Host) -> None:
        super().__init__(host.payloads, step_s=0.0)
        self._stuck, self._host = cfg.stuck, host

    async def train_step(self, batch: Any) -> Any:
        if self._stuck == "step" and self.version == 1:
            await _get_stuck(self._host, math.inf)
        return await super().train_step(batch)

    async def save(self, request: Any) -> Any:
        if self._stuck == "save":
            await _get_stuck(self._host, 1.0)
        return await super().save(request)


class _StuckEngine(ScriptedEngine):
    def __init__(self, cfg: Config, host: Host) -> None:
        super().__init__()
        self._stuck, self._host = cfg.stuck, host

    async def load_weights(self, manifest: Any) -> Any:
        if self._stuck == "publish" and manifest.version == 1:
            await _get_stuck(self._host, math.inf)
        return await super().load_weights(manifest)


def _executor(cfg: Config, host: Host) -> ScriptedExecutor:
    return ScriptedExecutor(host.payloads, host.inference, duration_s=lambda _: math.inf if cfg.hangs else 0.0)


def _grader(cfg: Config, _host: Host) -> ScriptedGrader:
    def all_fail(request: GradeRequest) -> list[GradeFault]:
        return [GradeFault(kind="raised", detail="Traceback:\nZeroDivisionError: in reward.py")] * len(request.samples)

    return ScriptedGrader(all_fail if cfg.fails == "reward" else alternating)


class _BrokenTrainer(ScriptedTrainer):
    fails: str

    async def train_step(self, batch: Any) -> Any:
        if self.fails == "rule":
            raise InvariantError("a row is named twice")
        raise ZeroDivisionError("nobody foresaw it")


def _trainer(cfg: Config, host: Host) -> ScriptedTrainer:
    if not cfg.fails:
        return _StuckTrainer(cfg, host)
    trainer = _BrokenTrainer(host.payloads, step_s=0.0)
    trainer.fails = cfg.fails
    return trainer


prompts = Adapter(lambda _cfg, _host: ScriptedPrompts(100))
reward = Adapter(_grader)
episode = Adapter(_executor)
engine = Adapter(_StuckEngine)
train = Adapter(_trainer)

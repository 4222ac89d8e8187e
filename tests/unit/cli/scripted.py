"""Scripted workloads as adapters, ``tests.unit.cli.scripted:train``: whole runs by job file, without torch."""

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

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
    """

    fails: str = ""
    hangs: bool = False


@dataclass(frozen=True)
class Adapter:
    make: Callable[[Config, Host], Any]
    Config: type[Config] = Config

    def check(self, _cfg: Config, _site: Site) -> Sequence[Problem]:
        return ()

    def open(self, cfg: Config, host: Host) -> AbstractAsyncContextManager[Any]:
        return _open(self.make(cfg, host))


@asynccontextmanager
async def _open(port: Any) -> AsyncGenerator[Any]:
    yield port


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
        return ScriptedTrainer(host.payloads, step_s=0.0)
    trainer = _BrokenTrainer(host.payloads, step_s=0.0)
    trainer.fails = cfg.fails
    return trainer


prompts = Adapter(lambda _cfg, _host: ScriptedPrompts(100))
reward = Adapter(_grader)
episode = Adapter(_executor)
engine = Adapter(lambda _cfg, _host: ScriptedEngine())
train = Adapter(_trainer)

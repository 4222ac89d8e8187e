"""One run that is killed again and again: its folder and its record outlive each life, and nothing else does."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import msgspec

from backends.ledgers.memory import MemoryLedger
from backends.sim.prompts import ScriptedPrompts
from conductor.conductor import Conductor
from conductor.config import RunConfig
from conductor.result import RunResult
from protocols.ledger import LedgerEvent
from tests.support.runs import open_backend_over, workloads_of
from tests.support.scripted.chained import ChainedTrainer
from tests.support.scripted.workloads import ScriptedWorkloads


class Killed(BaseException):
    """The process is gone: what it would have done after this is undone by ``Lives``."""


Fatal = Callable[[Sequence[LedgerEvent]], bool]


def holds(number: int) -> Fatal:
    """Return whether a record holds so many events."""
    return lambda events: len(events) >= number


def never(events: Sequence[LedgerEvent]) -> bool:
    """Let it live."""
    return False


class MortalLedger(MemoryLedger):
    """Kills the process when it holds what it is to die at.

    Args:
        events: What the lives before it wrote.
        fatal: Whether a record is the last that it holds.
        die: Called at that moment.
    """

    def __init__(self, events: Sequence[LedgerEvent], fatal: Fatal, die: Callable[[], None]) -> None:
        super().__init__()
        self._events = list(events)
        self._fatal = fatal
        self._die = die
        self.dead = False

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        """Write, and die behind the last one."""
        if self.dead:
            raise Killed
        await super().append(events)
        self._meet()

    async def compact(self, events: tuple[LedgerEvent, ...]) -> None:
        """Sum up."""
        if self.dead:
            raise Killed
        self._events = list(events)
        self._meet()

    def _meet(self) -> None:
        if self._fatal(self._events):
            self.dead = True
            self._die()
            raise Killed


@dataclass(kw_only=True)
class Lives:
    """What outlives a kill.

    Args:
        cfg: The job; its folder is taken from ``folder``.
        build: Makes the workloads of one life.
        folder: Where the lives write, one folder after the other.
        evaluated_on: Makes the prompts of an evaluation for one life; None: it has none.

    Attributes:
        events: The record.
        trainer: Of the last life.
    """

    cfg: RunConfig
    build: Callable[[], ScriptedWorkloads]
    folder: Path
    evaluated_on: Callable[[], ScriptedPrompts] | None = None
    events: list[LedgerEvent] = field(default_factory=list)
    trainer: Any = None
    _run_dir: Path | None = None
    _count: int = 0

    @property
    def spooled(self) -> list[Path]:
        """The files of finished groups that the last life left behind, in the order of admission."""
        folder = (self._run_dir or self.folder) / "spool"
        return sorted(folder.iterdir(), key=lambda path: int(path.stem.strip("L."))) if folder.exists() else []

    async def live(self, fatal: Fatal = never, *, stop_after_s: float = math.inf) -> RunResult | None:
        """Live until the record is ``fatal``, or somebody stops it; returns the result of a whole life.

        The disk is as it was at the moment of death: what the unwinding of the life wrote is thrown away. A life
        that is stopped ends in order.
        """
        self._count += 1
        run_dir = self.folder / f"life-{self._count}"
        if self._run_dir is None:
            run_dir.mkdir()
        else:
            shutil.copytree(self._run_dir, run_dir)
        after = self.folder / f"after-{self._count}"
        ledger = MortalLedger(self.events, fatal, lambda: shutil.copytree(run_dir, after))
        scripted = self.build()
        self.trainer = ChainedTrainer(scripted.payloads)
        scripted = replace(scripted, trainer=self.trainer)
        result: RunResult | None = None
        try:
            async with open_backend_over(scripted) as backend:
                cfg = msgspec.structs.replace(self.cfg, run_dir=str(run_dir))
                workloads = workloads_of(scripted, ledger)
                if self.evaluated_on is not None:
                    workloads = replace(workloads, evaluation_prompts=self.evaluated_on())
                with anyio.move_on_after(stop_after_s):
                    result = await Conductor.run(cfg, backend=backend, workloads=workloads, resume=True)
        except BaseException:  # noqa: ASYNC103 - the life is over, however its unwinding ended
            if not ledger.dead:
                raise
        self._run_dir = after if ledger.dead else run_dir
        self.events = list(ledger._events)
        return result

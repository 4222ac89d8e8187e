"""The job of the kill drill, and a ledger in which the process dies at a chosen moment.

Nothing here is imported by the product: the job names these functions and this adapter by dotted name.
"""

import os
import random
import signal
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from backends.ledgers import sqlite
from conductor.config import CheckpointConfig, FilterConfig, RunConfig
from protocols.adapters import Host
from protocols.errors import Problem
from protocols.inference import Sampling
from protocols.ledger import (
    Admitted,
    CheckpointBegun,
    Checkpointed,
    Committed,
    LedgerEvent,
    LedgerPort,
    Record,
    Restored,
    Resumed,
    Stepped,
)
from protocols.messages import Message
from protocols.sections import Section, Site

DIGITS = 4
STEPS = 10
EVERY = 2
BATCH = 3
EPOCH = 17
TOO_LONG = 5  # of an epoch's prompts, this one fits in no context
ADMITTED, COMMITS, RESUMES, RESTORED = "admitted.jsonl", "commits.jsonl", "resumes.jsonl", "restored.jsonl"

Point = Literal["before", "after", "during"]
Durability = Literal["leases", "groups"]


def prompt(index: int, seed: int) -> dict[str, str]:
    """Return prompt ``index``: digits to write backwards, or one that no context holds."""
    digits = "".join(random.Random(f"{seed}/{index}").choices("0123456789", k=DIGITS))
    return {"prompt": "9" * 40 if index == TOO_LONG else f"{digits}>", "digits": digits}


def reward(completion: str, digits: str) -> float:
    """Return 1 for a right first digit: mostly, the samples of a group all earn the same and are filtered."""
    return float(completion[:1] == digits[-1])


def job(run_dir: Path, death: "Death | None", durability: Durability = "leases") -> RunConfig:
    """Return the job; ``death`` says when the process dies, if a ledger event is what kills it."""
    here = "benchmarks._drill_job"
    options = {} if death is None else msgspec.to_builtins(death)
    return RunConfig(
        name="drill",
        seed=7,
        steps=STEPS,
        batch_groups=BATCH,
        group_size=4,
        sampling=Sampling(max_tokens=DIGITS),
        filter=FilterConfig(ceiling=2, on_ceiling="keep"),
        checkpoint=CheckpointConfig(every=EVERY, keep=1, compact_events=90, durability=durability),
        freeze_gc=False,
        lag_interval_s=0.0,
        run_dir=str(run_dir),
        model=Section(
            kind="scratch",
            options={
                "architecture": "gpt2",
                "vocabulary": "0123456789>",
                "config": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "tie_word_embeddings": False},
            },
        ),
        prompts=Section(kind="function", options={"function": f"{here}:prompt", "epoch_length": EPOCH}),
        reward=Section(kind="function", options={"function": f"{here}:reward", "cheap": True}),
        engine=Section(kind="torch", options={"slots": 16, "threads": 1, "deterministic": True}),
        train=Section(kind="torch", options={"lr": 1e-2, "threads": 1}),
        ledger=Section(kind=f"{here}:mortal", options=options),
    )


class Death(Message, frozen=True, kw_only=True):
    """When the process dies by its own hand.

    Attributes:
        at: The tag of an event, or ``compact``; None: somebody else kills it.
        number: The how manieth one, from 1.
        point: Before it is written, after, or while it is, ``delay_s`` after the call.
    """

    at: str | None = None
    number: int = 1
    point: Point = "after"
    delay_s: float = 0.0


def die() -> NoReturn:
    """End this process as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    raise AssertionError


class _MortalLedger:
    """Writes to SQLite, keeps a second opinion beside it, and dies when it is time.

    Args:
        inner: The ledger of the product.
        death: When.
        folder: Where the second opinion lies: what was committed and where each life went on.
    """

    def __init__(self, inner: LedgerPort, death: Death, folder: Path) -> None:
        self._inner = inner
        self._death = death
        self._folder = folder
        self._seen = 0
        self._committed = 0
        self._writing = False

    async def append(self, events: tuple[LedgerEvent, ...]) -> None:
        """Write the events; see ``LedgerPort``."""
        last = any(self._is_last(str(type(event).__struct_config__.tag)) for event in events)
        if last:
            self._meet("before")
        await self._inner.append(events)
        for event in events:
            self._note(event)
        if last:
            self._meet("after")

    async def replay(self, after: int) -> tuple[LedgerEvent, ...]:
        """Return events, and remember how far the life before this one had come."""
        events = await self._inner.replay(after)
        for event in events:
            if isinstance(event, Admitted):
                self._note(event)  # the last life may have died before it noted it
            elif isinstance(event, Committed | Resumed):
                self._committed = event.version
            elif isinstance(event, Stepped):
                self._committed = event.record.step
            elif isinstance(event, CheckpointBegun):
                self._writing = True
            if isinstance(event, Checkpointed | Resumed):
                self._writing = False
        return events

    async def lost(self) -> int:
        """Return how many events are lost."""
        return await self._inner.lost()

    async def compact(self, events: tuple[LedgerEvent, ...]) -> None:
        """Sum up; see ``LedgerPort``."""
        last = self._is_last("compact")
        if last:
            self._meet("before")
        await self._inner.compact(events)
        if last:
            self._meet("after")

    def _is_last(self, what: str) -> bool:
        self._seen += what == self._death.at
        return what == self._death.at and self._seen == self._death.number

    def _meet(self, point: Point) -> None:
        if self._death.point == point:
            die()
        if self._death.point == "during" and point == "before":
            timer = threading.Timer(self._death.delay_s, die)
            timer.daemon = True
            timer.start()

    def _note(self, event: LedgerEvent) -> None:
        if isinstance(event, Admitted):
            _add(self._folder / ADMITTED, [event.lease_id, event.prompt.position])
        elif isinstance(event, Committed):
            _add(self._folder / COMMITS, [event.version, list(event.leases)])
        elif isinstance(event, Resumed):
            _add(self._folder / COMMITS, [event.version, None])
            _add(self._folder / RESUMES, [self._committed, event.version, self._writing])
        elif isinstance(event, Restored):
            _add(self._folder / RESTORED, event.lease_id)


_: type[LedgerPort] = _MortalLedger


def _add(path: Path, line: Any) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(msgspec.json.encode(line) + b"\n")


class _Mortal:
    """The adapter."""

    Config = Death

    def check(self, _cfg: Death, site: Site) -> Sequence[Problem]:
        return sqlite.check(sqlite.Config(), site)

    @asynccontextmanager
    async def open(self, cfg: Death, host: Host) -> AsyncGenerator[LedgerPort]:
        async with sqlite.open(sqlite.Config(), host) as inner:
            yield _MortalLedger(inner, cfg, Path(host.site.run_dir or ""))

    def read(self, _cfg: Death, site: Site) -> Record:
        return sqlite.read(sqlite.Config(), site)


mortal = _Mortal()

"""An asyncio loop on virtual time: whenever all tasks wait, the clock jumps to the next timer.

Whole programs run in no time and the same way each time: the clock starts at 0.0 s and stands still
while anything is ready, cancellation reaches siblings in the order in which they were spawned, and what
is given to a thread runs in place. A program that can make no progress is told so, task by task, where a
real clock would let it hang. Sockets, processes and threads of one's own are refused: nothing here knows
when they will answer.
"""

import asyncio
import math
import random
import selectors
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import anyio

from backends.sim.repeatable import RepeatableLoop
from backends.sim.sites import waiting_tasks

T = TypeVar("T")

HORIZON_S = 20_000.0
"""Virtual seconds that one run may take: a periodic task keeps a deadlock from ever being without timers."""

SPIN_LIMIT = 200_000
"""Rounds of the loop at one instant; about a real second."""

MEND = "on virtual time nothing outside of the loop may answer (a test of it is marked real_time)"


class Stuck(Exception):
    """The program can make no progress.

    It is raised out of the loop, not into a task, so that no handler of the program sees it.

    Args:
        why: What was found.
        at_s: Virtual time.
        waiting: ``name at site`` of each task that is not done.
    """

    def __init__(self, why: str, *, at_s: float, waiting: tuple[str, ...]) -> None:
        tasks = "".join(f"\n  {task}" for task in waiting)
        super().__init__(f"{why}, at t={at_s:.6g} s; tasks that are not done:{tasks}")
        self.at_s = at_s
        self.waiting = waiting


class Deadlock(Stuck):
    """Every task waits, and no timer is armed that could wake one."""


class Livelock(Stuck):
    """Tasks run without end, and no time passes."""


class Endless(Stuck):
    """The run went past its horizon."""


class Refused(Stuck):
    """The program asked for something that does not keep virtual time."""


class _JumpingSelector(selectors.DefaultSelector):
    """Takes the loop's waits for jumps of its clock; the loop's own wake-up pipe is all that it watches."""

    def __init__(self, judge: Callable[[type[Stuck], str], Stuck], *, spin_limit: int) -> None:
        super().__init__()
        self._judge = judge
        self._spin_limit = spin_limit
        self._spins = 0
        self.now = 0.0
        self.horizon = math.inf
        self.refusal: Stuck | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch the loop's wake-up pipe, which comes first; refuse everything else."""
        if self.get_map():
            raise self.refuse("a socket or a pipe was opened")
        return super().register(fileobj, events, data)

    def refuse(self, what: str) -> Stuck:
        """Return the error, and end the run with it even where the program swallows it."""
        self.refusal = self._judge(Refused, f"{what}: {MEND}")
        return self.refusal

    def start(self, horizon_s: float) -> None:
        """Begin a run; what was found in an earlier one must not spoil the clean-up that follows it."""
        self._spins = 0
        self.horizon = self.now + horizon_s
        self.refusal = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what woke the loop, or jump by ``timeout`` at once."""
        if self.refusal is not None:
            raise self.refusal
        woken = super().select(0)
        if woken:
            return woken
        if timeout is None:
            raise self._judge(Deadlock, "deadlock: no timer is armed")
        if timeout > 0:
            self._spins = 0
            self.now += timeout
            if self.now > self.horizon:
                raise self._judge(Endless, "the run does not end")
            return woken
        self._spins += 1
        if self._spins > self._spin_limit:
            raise self._judge(Livelock, f"livelock: {self._spins} rounds at one instant")
        return woken


class VirtualTimeLoop(RepeatableLoop):
    """Event loop whose clock starts at 0.0 s and costs no real time.

    Args:
        seed: Tasks that are ready in the same round run in an order drawn from it; None: first come,
            first served. Each seed is a schedule that asyncio might choose, and the same one each time.
        horizon_s: Virtual seconds that one run of the loop may take.
        spin_limit: Rounds that it may make at one instant.

    Raises:
        Stuck: From ``run_until_complete``. The tasks can still be cancelled and run to their end.
    """

    def __init__(self, seed: int | None = None, *, horizon_s: float = HORIZON_S, spin_limit: int = SPIN_LIMIT) -> None:
        self._horizon_s = horizon_s
        self._jumping = _JumpingSelector(self._verdict, spin_limit=spin_limit)
        self._order = None if seed is None else random.Random(seed)
        self._runs_in: int | None = None
        self._threads_before = frozenset(threading.enumerate())
        super().__init__(self._jumping)
        # What is added to the clock when due timers are looked for. The default, 1 ns, is finer than a
        # float resolves once the clock is large: the timer would never be due (CPython 116342).
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._jumping.now

    def run_forever(self) -> None:
        """Run until stopped or stuck."""
        self._jumping.start(self._horizon_s)
        self._runs_in = threading.get_ident()
        super().run_forever()

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        """Call at a time; a timer that is never due (``sleep_forever`` arms one) is armed nowhere."""
        if math.isinf(when):
            return asyncio.TimerHandle(when, callback, args, self, **kwargs)
        return super().call_at(when, callback, *args, **kwargs)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run ``func`` in place: the loop stands still for as long as it takes."""
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:  # noqa: BLE001 - it is the future's, as it would be an executor's
            future.set_exception(exc)
        return future

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Handle:
        """Call soon; a call from another thread ends the run."""
        if self.is_running() and threading.get_ident() != self._runs_in:
            self._jumping.refuse(f"thread {threading.current_thread().name} called back")
        return super().call_soon_threadsafe(callback, *args, **kwargs)

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a process does not keep virtual time."""
        del args, kwargs
        raise self._jumping.refuse("a process was started")

    async def subprocess_shell(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a process does not keep virtual time."""
        del args, kwargs
        raise self._jumping.refuse("a process was started")

    def _run_once(self) -> None:
        if self._order is not None:
            self._shuffle_ready(self._order)
        super()._run_once()  # pyright: ignore[reportAttributeAccessIssue] - asyncio has no public round

    def _shuffle_ready(self, order: random.Random) -> None:
        """Let the tasks that are ready change places; callbacks, which asyncio runs in order, keep theirs."""
        ready: Any = self._ready  # pyright: ignore[reportAttributeAccessIssue]
        handles = list(ready)
        places = [place for place, handle in enumerate(handles) if _is_task_step(handle)]
        steps = [handles[place] for place in places]
        order.shuffle(steps)
        for place, step in zip(places, steps, strict=True):
            handles[place] = step
        ready.clear()
        ready.extend(handles)

    def _verdict(self, kind: type[Stuck], why: str) -> Stuck:
        started = sorted(thread.name for thread in set(threading.enumerate()) - self._threads_before)
        if started:
            why = f"{why} (threads run: {', '.join(started)}: {MEND})"
        return kind(why, at_s=self.time(), waiting=waiting_tasks(asyncio.all_tasks(self)))


def _is_task_step(handle: Any) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)  # noqa: SLF001 - asyncio tells nobody


def run_virtual(main: Callable[[], Awaitable[T]], *, seed: int | None = None, horizon_s: float = HORIZON_S) -> T:
    """Run ``main`` to its end on a virtual-time loop of its own.

    Args:
        main: Called in the loop.
        seed: Of the schedule, as for ``VirtualTimeLoop``.
        horizon_s: Virtual seconds it may take.

    Raises:
        Stuck: It cannot end.
        BaseException: Whatever it raised.
    """
    factory = partial(VirtualTimeLoop, seed, horizon_s=horizon_s)
    return anyio.run(main, backend_options={"loop_factory": factory})

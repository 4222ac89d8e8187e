"""Fail exactly one of the calls that cross a set of ports, and each of them in turn."""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Literal, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from backends.sim.virtual_time import HORIZON_S, VirtualTimeLoop
from protocols import wire
from tests.support.trials import Outcome, Trial, each_place, run_program

P = TypeVar("P")
T = TypeVar("T")

When = Literal["before", "after", "hang", "hang_after"]
"""How the call fails.

``before``: It raises and reached nobody: the request is lost.
``after``: It was carried out and then raises: the reply is lost.
``hang``: It reaches nobody and never returns.
``hang_after``: It was carried out and never returns.
"""


class PortFaults:
    """Counts the calls through all ports that it wraps, and fails one.

    Args:
        at: Number of the call, from 1; None only counts.
        when: How it fails.
        error: Makes what is raised.

    Attributes:
        calls: ``Port.method`` of every call, in order.
    """

    def __init__(self, at: int | None, when: When, error: Callable[[], Exception]) -> None:
        self._at = at
        self._when: When = when
        self._error = error
        self.calls: list[str] = []

    def wrap(self, port: type[P], implementation: P) -> P:
        """Return ``implementation`` as seen through a line that may fail."""

        async def send(method: str, args: tuple[Any, ...]) -> Any:
            self.calls.append(f"{port.__name__}.{method}")
            fault = self._when if len(self.calls) == self._at else None
            if fault == "before":
                await checkpoint()
                raise self._error()
            if fault == "hang":
                await anyio.sleep_forever()
            result = await getattr(implementation, method)(*args)
            if fault == "after":
                raise self._error()
            if fault == "hang_after":
                await anyio.sleep_forever()
            return result

        return wire.client(port, send)


def enumerate_port_calls(
    program: Callable[[PortFaults], Awaitable[T]],
    when: When,
    error: Callable[[], Exception],
    *,
    seed: int | None = None,
    horizon_s: float = HORIZON_S,
) -> Generator[Trial[T]]:
    """Run ``program`` undisturbed, then once for each of its port calls, which fails.

    Args:
        program: Called anew for each run; it wraps its ports in what it is given.
        when: How the call fails.
        error: Makes what is raised.
        seed: Of the schedule of all runs.
        horizon_s: Virtual seconds that one run may take.

    Yields:
        Number and name of the call, and how the run ended.

    Raises:
        Stuck, TasksLeft, NotRepeatable: As ``each_place`` says.
    """

    def run(at: int | None) -> tuple[list[str], Outcome[T]]:
        faults = PortFaults(at, when, error)
        make_loop = partial(VirtualTimeLoop, seed, horizon_s=horizon_s)
        return faults.calls, run_program(lambda _: program(faults), make_loop)

    return each_place(run)

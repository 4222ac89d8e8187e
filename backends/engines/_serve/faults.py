"""Calls of a server that go wrong on purpose, as a fault plan says."""

import os
import signal
from collections import Counter

import anyio

from backends.engines._serve.routes import Route
from backends.engines._serve.web import Answer, ConnectionReset, Request
from protocols.errors import UserError
from protocols.faults import Fault, FaultKind, FaultPlan

KINDS: tuple[FaultKind, ...] = ("crash", "hang", "slow", "lost_request", "lost_reply")
"""What a server can do to its clients; both losses reset the connection, and of ``lost_request`` nothing is done."""

_ENGINE = "Engine."


class Faults:
    """Counts the calls of each method of an engine, and lets those of a plan go wrong.

    Args:
        plan: Faults at calls of ``Engine`` methods.

    Raises:
        UserError: A fault of the plan cannot happen to a server.
    """

    def __init__(self, plan: FaultPlan) -> None:
        self._calls: Counter[str] = Counter()
        self._planned: dict[tuple[str, int], Fault] = {}
        for fault in plan.faults:
            if fault.kind not in KINDS or not fault.method.startswith(_ENGINE) or fault.call is None:
                raise UserError(f"{fault}: a server has {', '.join(KINDS)} at the calls of Engine methods, by number")
            self._planned[fault.method.removeprefix(_ENGINE), fault.call] = fault

    async def answer(self, route: Route, request: Request) -> Answer:
        """Answer as the route does, or go wrong."""
        self._calls[route.method] += 1
        fault = self._planned.get((route.method, self._calls[route.method]))
        if fault is None:
            return await route.answer(request)
        match fault.kind:
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                await anyio.sleep_forever()
            case "slow":
                await anyio.sleep(fault.lasts_s)
            case "lost_reply":
                await route.answer(request)
                raise ConnectionReset
            case _:
                raise ConnectionReset
        return await route.answer(request)

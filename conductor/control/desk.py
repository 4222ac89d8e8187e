"""Answers what is asked of a run, from the moment it begins to open its ports until they are closed again."""

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from conductor.config import RunConfig
from conductor.context import RunContext
from conductor.control.messages import Reply, Request
from conductor.core.explanation import explain
from conductor.core.status import RunStatus
from conductor.core.waits import Waits
from conductor.status import ask_engines, ask_launcher, opening_status, take_status
from protocols.aio import deadline
from protocols.errors import DeadlineExceeded, UserError

_PACE_S = 0.1
"""Between two looks at a run: whoever asks without pause takes a tenth of its time at most."""

_WAITING = 4
"""Requests for a checkpoint that may wait: the clients beside them still get an answer."""

_NO_MORE_STEPS = frozenset({"saving", "stopping", "finishing"})


class Desk:
    """Knows where the run is, and may end it.

    Args:
        cfg: The job.
        waits: The calls of the ports that are open.

    Attributes:
        scope: Around the whole run; a request to stop cancels it.
    """

    def __init__(self, cfg: RunConfig, waits: Waits) -> None:
        self._cfg = cfg
        self._waits = waits
        self._ctx: RunContext | None = None
        self._turn = anyio.Lock()
        self._next = 0.0
        self._waiting = 0
        self.scope = anyio.CancelScope()

    @contextmanager
    def attend(self, ctx: RunContext) -> Generator[None]:
        """Answer from the state of a run while its ports are open."""
        self._ctx = ctx
        try:
            yield
        finally:
            self._ctx = None

    async def answer(self, request: Request) -> Reply:
        """Do what is asked."""
        match request.command:
            case "status":
                return Reply(status=await self._look())
            case "why":
                status = await self._look()
                return Reply(status=status, why=explain(status))
            case "stop":
                self.scope.cancel()
                return Reply(done="stopping")
            case "checkpoint":
                return await self._checkpoint()
            case "scale":
                return await self._scale(request.role, request.size)

    async def _look(self) -> RunStatus:
        """Return where the run stands; who asks too often waits for a turn."""
        async with self._turn:
            await anyio.sleep_until(self._next)
            began = anyio.current_time()
            if self._ctx is None:
                status = opening_status(self._cfg, self._waits)
            else:
                status = take_status(self._ctx, await ask_engines(self._ctx), await ask_launcher(self._ctx))
            now = anyio.current_time()
            self._next = now + max(_PACE_S, 9 * (now - began))
            return status

    async def _scale(self, role: str, size: int) -> Reply:
        ctx = self._ctx
        if ctx is None or ctx.ports.scaler is None:
            why = "the run has not begun to train" if ctx is None else "its engines were handed over, not launched"
            return Reply(error=why)
        if ctx.phase in _NO_MORE_STEPS or self.scope.cancel_called:
            return Reply(error=f"the run is {ctx.phase}")
        try:
            done = await ctx.ports.scaler.scale(role, size)
        except UserError as exc:
            return Reply(error=str(exc), refused=True)
        return Reply(error=str(done)) if done.verdict == "undone" else Reply(done=str(done))

    async def _checkpoint(self) -> Reply:
        ctx = self._ctx
        if ctx is None:
            return Reply(error="the run has not begun to train")
        if ctx.saved == ctx.trained and ctx.checkpoint is not None:
            return Reply(done=ctx.checkpoint)  # nothing was trained since
        if ctx.phase in _NO_MORE_STEPS or self.scope.cancel_called:
            return Reply(error=f"the run is {ctx.phase}")
        if self._waiting >= _WAITING:
            return Reply(error=f"{self._waiting} others wait for a checkpoint already")
        self._waiting += 1
        try:
            return await self._saved(ctx)
        finally:
            self._waiting -= 1

    async def _saved(self, ctx: RunContext) -> Reply:
        wanted = ctx.trained
        ctx.checkpoint_wanted = ctx.saving != wanted
        try:
            with deadline("the next checkpoint", ctx.cfg.deadlines.stall_s):
                while ctx.saved is None or ctx.saved < wanted:
                    await ctx.changed.wait()
        except DeadlineExceeded as exc:
            return Reply(error=str(exc))
        return Reply(done=ctx.checkpoint or "")

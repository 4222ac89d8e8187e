"""How one engine comes to serve newer weights."""

from collections.abc import Callable
from dataclasses import dataclass

import anyio
import structlog

from backends.engines._member import Member
from protocols.aio import bounded_shield, deadline
from protocols.errors import ConductorError, Transient
from protocols.inference import PublishMode, WeightsManifest

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Renewer:
    """Brings weights to one member.

    Attributes:
        mode: What becomes of the requests that it works on.
        answer_s: Seconds within which it answers what takes no work.
        load_s: Seconds within which it loads, and for which what is to finish first is waited for.
        paused: Whether all engines are to stand still.
    """

    mode: PublishMode
    answer_s: float
    load_s: float
    paused: Callable[[], bool]

    async def renew(self, member: Member, manifest: WeightsManifest) -> None:
        """Let a member that gets no new requests serve ``manifest``, and go on, however this ends.

        Raises:
            ConductorError: It does not serve it.
        """
        if member.lost:
            with deadline(f"probe of {member.name}", self.answer_s):
                await member.engine.status()
            member.lost, member.halted = False, True
        if self.mode == "drain":
            with anyio.move_on_after(self.load_s):
                await member.quiet()
            member.cut()
            await member.quiet()
        resumed = True
        try:
            await self._load(member, manifest)
        finally:
            if member.halted and not self.paused():
                resumed = await self.resume(member)  # noqa: ASYNC102 - shielded there, with a deadline
        if not resumed:
            raise Transient(f"{member.name} stands still")

    async def _load(self, member: Member, manifest: WeightsManifest) -> None:
        if self.mode == "interrupt" and not self.paused():
            member.halted = True
            with deadline(f"pause of {member.name}", self.answer_s):
                await member.engine.pause()
        halted, member.halted = member.halted, True  # an engine may pause itself to load, and fail then
        with deadline(f"loading v{manifest.version} into {member.name}", self.load_s):
            served = await member.engine.load_weights(manifest)
        if served != manifest.version:
            raise Transient(f"it serves {served} after {manifest.version} was loaded")
        member.halted = halted

    async def resume(self, member: Member) -> bool:
        """Let a member go on, under a shield of twice ``answer_s`` at most; return whether it does."""
        member.halted = True
        with bounded_shield(2 * self.answer_s):  # the deadline within comes first, and says who is silent
            try:
                with deadline(f"resume of {member.name}", self.answer_s):
                    await member.engine.resume()
            except ConductorError as exc:
                log.warning("engine.call_failed", call="resume", member=member.name, error=str(exc))
            else:
                member.halted = False
        return not member.halted

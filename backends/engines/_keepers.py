"""Who lets each engine of a pool serve the weights that are wanted."""

from collections.abc import Sequence
from functools import partial

import anyio
import structlog
from anyio.abc import TaskGroup

from backends.engines._member import Member
from backends.engines._renewal import Renewer
from protocols.aio import Doorbell, owned
from protocols.errors import ConductorError
from protocols.inference import WeightsManifest
from protocols.messages import WorkerId
from protocols.pauses import LONGEST_S, pause_s

log = structlog.get_logger(__name__)


class Keepers:
    """One task a member, which renews it until it serves what is wanted, and waits until it does not any more.

    Args:
        members: All of them.
        renewer: Renews one.
        publish_s: For how long ``settle`` waits.

    Attributes:
        wanted: Weights that every member is to serve; None: none were published yet.
        moved: Rings whenever a member serves what is wanted, or failed to.
    """

    def __init__(self, members: Sequence[Member], renewer: Renewer, *, publish_s: float) -> None:
        self._members = members
        self._renewer = renewer
        self._publish_s = publish_s
        self._longest_pause_s = min(LONGEST_S, publish_s / 10)  # an engine that is back is found before all is given up
        self._awaited: set[WorkerId] = set()
        self._tasks: TaskGroup | None = None
        self.wanted: WeightsManifest | None = None
        self.moved = Doorbell()

    @property
    def hopeless(self) -> bool:
        """Whether trying again would let no member serve what is wanted."""
        wanted = self.wanted
        return wanted is not None and all(member.refuses(wanted.version) for member in self._members)

    def standing(self) -> str:
        """Say what is wrong with each member."""
        return "; ".join(member.standing() for member in self._members) or "there is none"

    def want(self, manifest: WeightsManifest) -> None:
        """Let every member serve ``manifest``: those that do not get no requests until they do."""
        behind = [member for member in self._members if member.confirmed != manifest.version]
        if self.wanted is None or self.wanted.version != manifest.version:
            self.wanted = manifest
            for member in behind:
                if member.renewal is not None:
                    member.renewal.cancel()
        self._awaited = {member.name for member in behind if member.failure is None}
        for member in behind:
            member.stale()

    async def settle(self) -> None:
        """Wait until each member that had not failed before serves what is wanted, or has failed.

        For half of ``publish_s`` at most if others serve it; for all of it, through all failures, until the first does.
        """
        with anyio.move_on_after(self._publish_s):
            with anyio.move_on_after(self._publish_s / 2):
                while self._awaited:
                    await self.moved.wait()
            while not (self._any_serves or self.hopeless):
                await self.moved.wait()

    def start(self, tasks: TaskGroup) -> None:
        """Start to keep every member, until the tasks are cancelled."""
        self._tasks = tasks
        for member in self._members:
            self.keep(member)

    def keep(self, member: Member) -> None:
        """Keep a member from now on."""
        if self._tasks is not None:
            name = f"keeper of {member.name}"
            member.keeping = anyio.CancelScope()
            self._tasks.start_soon(owned, name, partial(self._keep_within, member, member.keeping), name=name)

    def release(self, member: Member) -> None:
        """Keep a member no longer, and wait for it no more."""
        if member.keeping is not None:
            member.keeping.cancel()
        self._awaited.discard(member.name)
        self.moved.ring()

    async def _keep_within(self, member: Member, scope: anyio.CancelScope) -> None:
        with scope:
            await self._keep(member)

    async def _keep(self, member: Member) -> None:
        while True:
            manifest = self.wanted
            if manifest is None or member.confirmed == manifest.version:
                await member.called.wait()
            elif not await self._renew(member, manifest):
                with anyio.move_on_after(pause_s(member.failures, member.name, longest_s=self._longest_pause_s)):
                    await member.called.wait()

    async def _renew(self, member: Member, manifest: WeightsManifest) -> bool:
        """Renew a member; return False where that failed, and not where it was cut since other weights are wanted."""
        failure: ConductorError | None = None
        with anyio.CancelScope() as member.renewal:
            try:
                await owned(f"renewal of {member.name}", partial(self._renewer.renew, member, manifest))
            except ConductorError as exc:
                failure = exc
        member.renewal = None
        if self.wanted is not manifest:
            return True
        if failure is None:
            member.renewed(manifest.version)
        else:
            member.failed(manifest.version, failure)
            if member.failures.bit_count() == 1:  # the 1st, 2nd, 4th: each publish is a reason to try again
                log.warning("engine.not_renewed", member=member.name, failures=member.failures, error=str(failure))
        self._awaited.discard(member.name)
        self.moved.ring()
        return failure is None

    @property
    def _any_serves(self) -> bool:
        return self.wanted is not None and any(one.confirmed == self.wanted.version for one in self._members)

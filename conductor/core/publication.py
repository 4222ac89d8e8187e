"""Which weights are to be published: one authority, and the newest wins."""

from protocols.errors import InvariantError
from protocols.inference import WeightsManifest
from protocols.messages import RegistrationKey, WeightVersion


class Publication:
    """Pending and confirmed weights of one registration.

    Three stagings hold memory at most: the one being served, the one being published and the newest one
    waiting; while that one is superseded, four. An older one that is pinned is one more.

    Attributes:
        owners: The prefix of every owner that ``owner`` names.
    """

    def __init__(self, registration: RegistrationKey) -> None:
        self.owners = f"weights/{registration.prefix}"
        self._pending: WeightsManifest | None = None
        self._serving: WeightsManifest | None = None
        self._pinned: WeightsManifest | None = None

    @property
    def serving(self) -> WeightVersion:
        """The version that the engines serve; 0 before the first."""
        return self.served or WeightVersion(0)

    @property
    def staged(self) -> WeightVersion | None:
        """The version that waits to be published; None: none does."""
        return None if self._pending is None else self._pending.version

    @property
    def served(self) -> WeightVersion | None:
        """The version that the engines confirmed last; None: none yet."""
        return None if self._serving is None else self._serving.version

    def owner(self, version: WeightVersion) -> str:
        """Return who owns the payload of a version; the trailing slash keeps v1 apart from v10."""
        return f"{self.owners}v{version}/"

    def stage(self, manifest: WeightsManifest) -> WeightsManifest | None:
        """Take newly staged weights; return what they supersede before it was published.

        Raises:
            InvariantError: The version is not newer than all before it.
        """
        newest = self._pending or self._serving
        if newest is not None and manifest.version <= newest.version:
            raise InvariantError(f"weights v{manifest.version} staged after v{newest.version}")
        superseded, self._pending = self._pending, manifest
        return superseded

    def stage_again(self, manifest: WeightsManifest) -> None:
        """Take the newest of all staged weights once more: where they lay before, they may be gone.

        Raises:
            InvariantError: Newer ones were staged meanwhile.
        """
        newest = self._pending or self._serving
        if newest is not None and manifest.version < newest.version:
            raise InvariantError(f"weights v{manifest.version} staged again after v{newest.version}")
        self._pending = manifest

    def take(self) -> WeightsManifest | None:
        """Take the newest weights that wait to be published, if there are any."""
        manifest, self._pending = self._pending, None
        return manifest

    def confirm(self, manifest: WeightsManifest) -> WeightsManifest | None:
        """Record that the engines serve ``manifest``; return what nobody needs any more, if it is not pinned."""
        before, self._serving = self._serving, manifest
        if before is not None and before.version == manifest.version:  # it was published again
            if self._pinned is before:
                self._pinned = manifest
            return None
        return None if before is self._pinned else before

    def pin(self) -> WeightsManifest:
        """Keep what the engines serve, whatever they serve later; returns it.

        Raises:
            InvariantError: They serve nothing, or something is pinned already.
        """
        if self._serving is None or self._pinned is not None:
            raise InvariantError(f"v{self.served} cannot be pinned: {self._pinned or 'nothing'} is")
        self._pinned = self._serving
        return self._serving

    def unpin(self) -> WeightsManifest | None:
        """Keep what was pinned no longer; return it if nobody needs it any more."""
        pinned, self._pinned = self._pinned, None
        return None if pinned is self._serving else pinned

"""Which weights are to be published: one authority, and the newest wins."""

from protocols.errors import InvariantError
from protocols.inference import WeightsManifest
from protocols.messages import RegistrationKey, WeightVersion


class Publication:
    """Pending and confirmed weights of one registration.

    Three stagings hold memory at most: the one being served, the one being published and the newest one
    waiting; while that one is superseded, four.

    Attributes:
        owners: The prefix of every owner that ``owner`` names.
    """

    def __init__(self, registration: RegistrationKey) -> None:
        self.owners = f"weights/{registration.prefix}"
        self._pending: WeightsManifest | None = None
        self._serving: WeightsManifest | None = None

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

    def take(self) -> WeightsManifest | None:
        """Take the newest weights that wait to be published, if there are any."""
        manifest, self._pending = self._pending, None
        return manifest

    def confirm(self, manifest: WeightsManifest) -> WeightsManifest | None:
        """Record that the engines serve ``manifest``; return what they served before."""
        before, self._serving = self._serving, manifest
        return before

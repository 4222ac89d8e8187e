"""How a server comes to hold weights, and how that is seen."""

import math
from collections.abc import Mapping, Sequence

import anyio
import structlog

from backends.engines._http.cargo import Shipping
from backends.engines._http.connection import refusals_as_transient
from backends.engines._http.dialect import Dialect, ServerState
from backends.engines._http.trust import Trust
from protocols.aio import bounded_shield, deadline
from protocols.backend import Bulk, PayloadPort
from protocols.errors import DeadlineExceeded, InvariantError, Transient, WorkerLost
from protocols.inference import Probe, WeightsManifest
from protocols.messages import WeightVersion

log = structlog.get_logger(__name__)

RESUME_S = 10.0
"""How long a server may take to go on after weights were loaded, whatever became of that."""

PROBE_S = 120.0
"""How long a server may take to read the few tokens of a probe; one that loads and never answers is tried again."""


class ServerWeights:
    """Brings weights to one server, and vouches for those that it was seen to hold.

    Of a server that stands still that can only be seen when it goes on. Until then nobody vouches for them, and what is
    made with them is given to nobody.

    Args:
        dialect: The server's interface.
        payloads: Where staged weights lie.
        shipping: How they get to the server.
        name: Of the server, in errors.
        tolerance: By how much a log-probability of the probe may differ from the trainer's.

    Attributes:
        label: Of the weights that it serves; None: it is stale.
        trust: What labels stand for.
        paused: Whether it is to stand still.
    """

    def __init__(
        self, dialect: Dialect, payloads: PayloadPort, shipping: Shipping, *, name: str, tolerance: float
    ) -> None:
        self.label: str | None = None
        self.trust = Trust()
        self.paused = False
        self._dialect = dialect
        self._payloads = payloads
        self._shipping = shipping
        self._name = name
        self._tolerance = tolerance
        self._loading = anyio.Lock()
        self._unproved: tuple[str, WeightsManifest] | None = None
        self._proving = anyio.Lock()
        self._probing: anyio.CancelScope | None = None

    async def state(self) -> tuple[ServerState, WeightVersion | None]:
        """Ask the server; where it serves what nobody loaded, or vouches for, it is stale from now on."""
        with refusals_as_transient(f"{self._name} says nothing of itself"):
            state = await self._dialect.state()
        if state.label != self.label:
            if not self._loading.locked():
                self.label = None
            return state, None
        return state, self.trust.version(state.label)

    async def load(self, manifest: WeightsManifest) -> None:
        """Let the server load weights, unless it serves them.

        Cancelling: whatever the server serves then, its label tells.

        Raises:
            Transient: The payload is not there, or the server does not load it, or does not hold it.
            InvariantError: The payload holds no weights.
        """
        async with self._loading:
            if self.label is not None and (await self.state())[1] == manifest.version:
                return
            weights = await self._fetched(manifest)
            label = self.trust.attempt(manifest.version)
            try:
                await self._exchange(label, weights)
                self._unproved = (label, manifest)
                if not self.paused:
                    await self.prove()
            except BaseException:
                self._unproved = None
                self.trust.refuse(label)
                raise

    def stands(self) -> None:
        """Take note that the server stands still: it answers no probe, and is asked again when it goes on."""
        self.paused = True
        if self._probing is not None:
            self._probing.cancel()

    async def prove(self) -> None:
        """See that a server that runs holds what it loaded last: of fixed tokens it makes what the trainer does.

        Raises:
            Transient: It holds something else.
        """
        async with self._proving:
            await self._prove()

    async def _prove(self) -> None:
        if self._unproved is None or self.paused:
            return
        label, manifest = self._unproved
        if manifest.probe is not None:
            found: tuple[str, float] | None = None
            with anyio.CancelScope() as self._probing:
                found = await self._farthest(manifest.probe)
            if found is None:  # it stands still
                return
            server, apart = found
            if apart > self._tolerance:
                self._unproved = None
                self.trust.refuse(label)
                log.error("engine.weights_not_held", engine=server, version=manifest.version, apart=apart)
                raise Transient(
                    f"{server} accepted version {manifest.version} and does not hold it: of the probe's tokens its "
                    f"log-probabilities differ by {apart:.3g} from the trainer's, and engine.probe_tolerance allows "
                    f"{self._tolerance:g}"
                )
        self._unproved = None
        self.trust.accept(label)
        self.label = label
        await self._shipping.held(label)

    async def _fetched(self, manifest: WeightsManifest) -> Mapping[str, object]:
        try:
            weights: Bulk = await self._payloads.get(manifest.payload)
        except WorkerLost as exc:  # the payload is lost, not this engine
            raise Transient(f"weights {manifest.version} are not there: {exc.message}") from exc
        if not isinstance(weights, Mapping):
            raise InvariantError(f"{manifest.payload} holds no weights")
        return weights

    async def _exchange(self, label: str, weights: Mapping[str, object]) -> None:
        """Let the server load weights while it stands still; however that ends, it goes on as it was before.

        Raises:
            Transient: It did not take them, or was not heard to go on.
        """
        cargo = await self._shipping.pack(label, weights)
        self.label = None
        try:
            if not self.paused:
                with refusals_as_transient(f"{self._name} does not pause"):
                    await self._dialect.pause()
            with refusals_as_transient(f"{self._name} did not load its weights"):
                await self._dialect.publish(cargo, label, self.trust.loading)
        finally:
            stands = False
            if not self.paused:
                with bounded_shield(RESUME_S) as scope, refusals_as_transient(f"{self._name} does not go on"):
                    await self._dialect.resume()  # noqa: ASYNC102 - the shield has a deadline
                stands = scope.cancelled_caught
        if stands:  # it would answer no probe
            raise DeadlineExceeded(what=f"the resume of {self._name}", deadline_s=RESUME_S)

    async def _farthest(self, probe: Probe) -> tuple[str, float]:
        """Return the server whose log-probabilities differ most from the trainer's, and by how much.

        Raises:
            Transient: It does not say, or not in time.
        """
        with refusals_as_transient(f"{self._name} cannot be probed"), deadline(f"the probe of {self._name}", PROBE_S):
            found = await self._dialect.score(probe.token_ids)
        return max(((one.server, _distance(one.logprobs, probe.logprobs)) for one in found), key=lambda one: one[1])


def _distance(found: Sequence[float], wanted: Sequence[float]) -> float:
    """Return the largest difference; infinity where something is missing."""
    if len(found) != len(wanted):
        return math.inf
    apart = [abs(one - other) for one, other in zip(found, wanted, strict=True)]
    return math.inf if any(map(math.isnan, apart)) else max(apart, default=0.0)

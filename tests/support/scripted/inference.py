"""An inference controller over scripted engines, for controller tests that need no pool."""

from collections.abc import Callable, Sequence

from anyio.lowlevel import checkpoint

from backends.sim.clock import spend
from protocols.errors import EngineStale, Stalled
from protocols.inference import (
    AbortReport,
    EngineStatus,
    GenerateRequest,
    Generation,
    InferenceControllerPort,
    PublishReceipt,
    Readiness,
    WeightsManifest,
)
from protocols.messages import WeightVersion, WorkerId
from tests.support.scripted.engine import Length, ScriptedEngine


def accept(member: WorkerId, version: WeightVersion) -> bool:
    """Let every member take every version."""
    return True


class ScriptedInference:
    """Members that are told what to confirm.

    Args:
        members: Names of the engines.
        token_s, length: Of every engine.
        publish_s: Seconds that a publish takes; ``math.inf`` hangs.
        confirms: Whether a member confirms a version; one that does not is stale afterwards.

    Attributes:
        engines: By member.
        published: Every manifest that was published, in order, repeats included.
    """

    def __init__(
        self,
        members: Sequence[WorkerId] = (WorkerId("engine/0"),),
        *,
        token_s: float = 0.01,
        length: Length | None = None,
        publish_s: float = 0.0,
        confirms: Callable[[WorkerId, WeightVersion], bool] = accept,
    ) -> None:
        self.engines = {name: ScriptedEngine(name=name, token_s=token_s, length=length) for name in members}
        self.published: list[WeightsManifest] = []
        self._versions: dict[WorkerId, WeightVersion | None] = dict.fromkeys(members)
        self._publish_s = publish_s
        self._confirms = confirms

    async def endpoint(self) -> str:
        """Return a name."""
        await checkpoint()
        return "scripted"

    async def prepare_rollout(self) -> Readiness:
        """Resume every engine and tell who serves."""
        await self.resume()
        serving = frozenset(name for name, version in self._versions.items() if version is not None)
        return Readiness(members=serving, stale=frozenset(self._versions) - serving)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate on the serving engine with the fewest live samples, the first of equals."""
        await checkpoint()
        serving = [name for name, version in self._versions.items() if version is not None]
        if not serving:
            raise EngineStale(engine="scripted")
        loads = [(await self.engines[name].status()).live for name in serving]
        return await self.engines[serving[loads.index(min(loads))]].generate(request)

    async def abort(self, prefix: str) -> AbortReport:
        """End requests on every engine."""
        stopped = [await engine.abort(prefix) for engine in self.engines.values()]
        return AbortReport(confirmed=frozenset().union(*stopped))

    async def live_requests(self) -> frozenset[str]:
        """Return what is live on any engine."""
        return frozenset().union(*[await engine.live_requests() for engine in self.engines.values()])

    async def publish(self, manifest: WeightsManifest) -> PublishReceipt:
        """Load into the members that ``confirms`` lets take it; the others are stale."""
        self.published.append(manifest)
        await spend(self._publish_s)
        for name, engine in self.engines.items():
            taken = self._confirms(name, manifest.version)
            self._versions[name] = await engine.load_weights(manifest) if taken else None
        confirmed = frozenset(name for name, version in self._versions.items() if version == manifest.version)
        if not confirmed:
            raise Stalled(f"no member confirmed version {manifest.version}")
        stale = frozenset(self._versions) - confirmed
        return PublishReceipt(version=manifest.version, confirmed=confirmed, stale=stale)

    async def versions(self) -> dict[WorkerId, WeightVersion | None]:
        """Return what each member confirmed."""
        await checkpoint()
        return dict(self._versions)

    async def statuses(self) -> dict[WorkerId, EngineStatus | None]:
        """Return what every engine says."""
        return {name: await engine.status() for name, engine in self.engines.items()}

    async def pause(self) -> None:
        """Pause every engine."""
        for engine in self.engines.values():
            await engine.pause()

    async def resume(self) -> None:
        """Resume every engine."""
        for engine in self.engines.values():
            await engine.resume()


_: type[InferenceControllerPort] = ScriptedInference

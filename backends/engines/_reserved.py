"""Two inference controllers behind one: requests of evaluations go to engines that do nothing else."""

from collections.abc import Sequence
from functools import partial

import anyio
from anyio.lowlevel import checkpoint

from protocols.aio import owned
from protocols.errors import ConductorError
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


class ReservedEngines:
    """The controller of the training's engines, which has requests under a prefix carried out by another one.

    What is published, paused or probed are the training's engines; whoever evaluates has the other controller itself.
    An abort asks those who can have what it names, so one of the training waits for no engine that evaluates.

    Args:
        training: For every other request.
        evaluating: For requests whose ids start with ``prefix``.
        prefix: Of every evaluation.
    """

    def __init__(self, training: InferenceControllerPort, evaluating: InferenceControllerPort, *, prefix: str) -> None:
        self._training = training
        self._evaluating = evaluating
        self._prefix = prefix

    async def endpoint(self) -> str:
        """Return the training's."""
        return await self._training.endpoint()

    async def prepare_rollout(self) -> Readiness:
        """Prepare the training's engines."""
        return await self._training.prepare_rollout()

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate where the request belongs, by its first sample."""
        evaluates = bool(request.samples) and request.samples[0].request_id.startswith(self._prefix)
        return await (self._evaluating if evaluates else self._training).generate(request)

    async def abort(self, prefix: str) -> AbortReport:
        """Abort on both at once, or on the one that the prefix belongs to."""
        reports: list[AbortReport] = []
        failures: list[ConductorError] = []

        async def abort(controller: InferenceControllerPort) -> None:
            try:
                reports.append(await controller.abort(prefix))
            except ConductorError as exc:
                failures.append(exc)

        await checkpoint()
        async with anyio.create_task_group() as tasks:
            for controller in self._asked(prefix):
                tasks.start_soon(owned, "abort", partial(abort, controller), name=f"abort of {prefix}")
        for failure in failures:
            raise failure
        return AbortReport(
            confirmed=frozenset().union(*(report.confirmed for report in reports)),
            unconfirmed=frozenset().union(*(report.unconfirmed for report in reports)),
        )

    async def live_requests(self) -> frozenset[str]:
        """Ask both."""
        return await self._training.live_requests() | await self._evaluating.live_requests()

    async def publish(self, manifest: WeightsManifest) -> PublishReceipt:
        """Publish to the training's engines."""
        return await self._training.publish(manifest)

    async def versions(self) -> dict[WorkerId, WeightVersion | None]:
        """Return what the training's engines confirmed."""
        return await self._training.versions()

    async def statuses(self) -> dict[WorkerId, EngineStatus | None]:
        """Ask the training's engines."""
        return await self._training.statuses()

    async def pause(self) -> None:
        """Pause the training's engines."""
        await self._training.pause()

    async def resume(self) -> None:
        """Let the training's engines go on."""
        await self._training.resume()

    def _asked(self, prefix: str) -> Sequence[InferenceControllerPort]:
        if prefix.startswith(self._prefix):
            return (self._evaluating,)
        return (self._training, self._evaluating) if self._prefix.startswith(prefix) else (self._training,)


_: type[InferenceControllerPort] = ReservedEngines

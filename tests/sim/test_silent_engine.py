"""An engine that lives and answers nothing, not even an abort: only its end confirms that nothing runs on it."""

from dataclasses import replace
from typing import Any

import anyio

from backends.sim.settings import Config
from backends.sim.virtual_time import VirtualTimeLoop
from backends.sim.world import open_world
from conductor.conductor import Conductor
from conductor.config import Deadlines, RunConfig
from conductor.ports import Workloads
from conductor.result import RunResult
from conductor.validation import site_of
from protocols.backend import LauncherPort, WorkerState, WorkloadSpec
from protocols.errors import WorkerLost
from protocols.incidents import Incident
from protocols.inference import InferenceControllerPort, Sampling
from protocols.ledger import AbortConfirmed, Aborting, LedgerEvent
from protocols.messages import WorkerId
from protocols.roles import RolesPort
from protocols.sections import Section
from tests.support.runs import run_config

SILENT = WorkerId("rollout/0")
SILENT_FROM_S = 35.5
ANSWER_S = 2.0
FENCED_WITHIN_S = 3 * (2.0 + ANSWER_S) + 2.0
"""Three probes that are not answered, each two seconds after the one before, and a look at what they found."""


class SilencedLauncher:
    """Carries no reply of one worker from a moment on, until that is ended; what it works on goes on."""

    def __init__(self, launcher: LauncherPort) -> None:
        self._launcher = launcher
        self._ended = anyio.Event()
        self.ended_s: float | None = None
        self.ended: frozenset[str] = frozenset()

    async def launch(self, spec: WorkloadSpec) -> None:
        await self._launcher.launch(spec)

    async def call(self, worker_id: WorkerId, method: str, args: tuple[Any, ...]) -> Any:
        await self._hear(worker_id)
        reply = await self._launcher.call(worker_id, method, args)
        await self._hear(worker_id)
        return reply

    async def serve(self, endpoint: str, port: InferenceControllerPort) -> None:
        await self._launcher.serve(endpoint, port)

    async def serve_roles(self, port: RolesPort) -> None:
        await self._launcher.serve_roles(port)

    async def poll(self) -> dict[WorkerId, WorkerState]:
        return await self._launcher.poll()

    async def kill(self, worker_id: WorkerId) -> None:
        if worker_id != SILENT or self.ended_s is not None:
            await self._launcher.kill(worker_id)
            return
        self.ended = await self._launcher.call(SILENT, "live_requests", ())
        await self._launcher.kill(worker_id)
        self.ended_s = anyio.current_time()
        self._ended.set()

    async def _hear(self, worker_id: WorkerId) -> None:
        if worker_id == SILENT and self.ended_s is None and anyio.current_time() >= SILENT_FROM_S:
            await self._ended.wait()
            raise WorkerLost(worker=SILENT, cause="it was ended")


_: type[LauncherPort] = SilencedLauncher


class Told:
    """What the run came to."""

    result: RunResult
    events: tuple[LedgerEvent, ...]
    fenced_s: float | None
    fenced: frozenset[str]
    unstopped: list[str]


def run(cfg: RunConfig) -> Told:
    told = Told()

    async def conduct() -> None:
        options = Config(sample="constant:30.0", train="1.0", publish="0.1")
        async with open_world(options, site_of(cfg)) as world:
            launcher = SilencedLauncher(world.backend.launcher)
            workloads = Workloads(prompts=world.prompts, ledger=world.ledger, trackers=())
            told.result = await Conductor.run(
                cfg, backend=replace(world.backend, launcher=launcher), workloads=workloads
            )
            told.events, told.unstopped = await world.record(), world.observed.unstopped
            told.fenced_s, told.fenced = launcher.ended_s, launcher.ended

    anyio.run(conduct, backend_options={"loop_factory": lambda: VirtualTimeLoop(0)})
    return told


def test_an_engine_that_answers_nothing_is_ended_and_launched_again() -> None:
    """I46: what runs on it counts as running until it is ended; a run that waits for its answer waits in vain.

    Its requests go on when a call is cut, and it confirms no abort. Its end through the launcher does: the groups are
    generated anew elsewhere at once, and not when ``deadlines.reconcile`` is over.
    """
    told = run(
        run_config(
            engines=2,
            steps=8,
            max_age=2,
            backend=Section(kind="sim"),
            reward=Section(kind="sim"),
            sampling=Sampling(max_tokens=1 << 20),
            deadlines=Deadlines(publish=30.0, abort=2 * ANSWER_S, reconcile=100.0),
        )
    )
    assert told.fenced_s is not None
    assert told.fenced_s < SILENT_FROM_S + FENCED_WITHIN_S
    assert told.result.steps == 8
    assert told.result.accounts.open == 0
    (incident,) = [event for event in told.events if isinstance(event, Incident)]
    assert (incident.workers, incident.verdict) == ((SILENT,), "restored")
    assert "3 probes of 2 s unanswered" in incident.detail
    fenced = {request.split("/")[1] for request in told.fenced}
    assert fenced, "it ran something that nothing else would have ended"
    intended = [event.lease_id for event in told.events if isinstance(event, Aborting)]
    confirmed = [event.lease_id for event in told.events if isinstance(event, AbortConfirmed)]
    assert fenced <= set(intended) == set(confirmed)
    assert not told.unstopped, "and nothing runs when the run is over"

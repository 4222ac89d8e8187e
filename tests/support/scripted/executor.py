"""A rollout executor that plays groups at a scripted pace, without an engine."""

import random
from collections.abc import Awaitable, Callable

from anyio.lowlevel import checkpoint

from backends.sim.clock import spend
from backends.sim.stoppable import Stoppable
from protocols.backend import PayloadPort
from protocols.errors import ConductorError, EngineStale
from protocols.inference import AbortReport, InferenceControllerPort
from protocols.messages import PayloadRef, WeightVersion, request_id, stream_name
from protocols.prompts import content_preview
from protocols.rollouts import (
    GroupPayload,
    GroupReceipt,
    RolloutExecutorPort,
    RolloutLease,
    SamplePayload,
    SampleReceipt,
)
from tests.support.scripted.engine import segments_of


def one_second(lease: RolloutLease) -> float:
    """Take a second for every group."""
    return 1.0


def never(lease: RolloutLease) -> ConductorError | None:
    """Let every group succeed."""
    return None


class ScriptedExecutor:
    """Plays a group for ``duration_s``; every sample of it has ``tokens`` tokens, made at an even pace.

    Tokens, log-probabilities and text depend on run seed, prompt position and sample alone.

    Args:
        payloads: Where the ``GroupPayload`` is put; None: nowhere, and the receipt's reference leads nowhere.
        inference: Whose versions stamp each token; None: version 0.
        duration_s: Seconds for the group of a lease; ``math.inf`` hangs until it is aborted or cancelled.
        failure: What ``generate`` raises for a lease when its time is over; None: nothing.
        tokens: Length of every completion, or of those of a lease; 0 makes empty ones.

    Attributes:
        leases: Every lease that was taken on, in the order of the calls, attempts included.
        aborted: Every prefix that was aborted, in order.
    """

    def __init__(
        self,
        payloads: PayloadPort | None = None,
        inference: InferenceControllerPort | None = None,
        *,
        duration_s: Callable[[RolloutLease], float] = one_second,
        failure: Callable[[RolloutLease], ConductorError | None] = never,
        tokens: int | Callable[[RolloutLease], int] = 4,
    ) -> None:
        self._payloads = payloads
        self._version = _versions_of(inference)
        self._duration_s = duration_s
        self._failure = failure
        self._tokens = tokens if callable(tokens) else lambda _: tokens
        self._work = Stoppable[GroupReceipt]()
        self.leases: list[RolloutLease] = []

    @property
    def aborted(self) -> list[str]:
        """Every prefix that was aborted, in order."""
        return self._work.aborted

    @property
    def live(self) -> frozenset[str]:
        """The request ids of all samples that are being played."""
        return self._work.live

    async def generate(self, lease: RolloutLease) -> GroupReceipt:
        """Play a group and put its payload."""
        await checkpoint()
        return await self._work.run(_ids(lease), lambda: self._play(lease))

    async def abort(self, prefix: str) -> AbortReport:
        """Stop playing, wait until it has stopped, release the payloads."""
        stopped = await self._work.abort(prefix)
        if self._payloads is not None:
            await self._payloads.release(prefix)
        return AbortReport(confirmed=stopped)

    async def _play(self, lease: RolloutLease) -> GroupReceipt:
        self.leases.append(lease)
        duration_s, tokens = self._duration_s(lease), self._tokens(lease)
        versions: list[WeightVersion] = []
        for _ in range(tokens):
            versions.append(await self._version())
            await spend(duration_s / tokens)
        if tokens == 0:
            await spend(duration_s)
        if (failure := self._failure(lease)) is not None:
            raise failure
        payload = group_payload(lease, tokens)
        ref = PayloadRef(owner=lease.prefix, key="group")
        if self._payloads is not None:
            await self._payloads.put(ref, payload)
        return _receipt(lease, payload, ref, versions)


def group_payload(lease: RolloutLease, tokens: int) -> GroupPayload:
    """Return the payload of a played lease, whose samples have ``tokens`` tokens each."""
    text = content_preview(lease.prompt.content)
    samples = []
    for sample in range(lease.group_size):
        stream = random.Random(stream_name(lease.seed, lease.prompt.position, sample))
        ids = tuple(stream.randrange(100) for _ in range(tokens))
        logprobs = tuple(-stream.random() for _ in range(tokens))
        samples.append(SamplePayload(token_ids=ids, logprobs=logprobs, text=" ".join(map(str, ids))))
    return GroupPayload(
        prompt_ids=tuple(text.encode()),
        prompt_text=text,
        temperature=lease.sampling.temperature,
        samples=tuple(samples),
    )


def _receipt(
    lease: RolloutLease, payload: GroupPayload, ref: PayloadRef, versions: list[WeightVersion]
) -> GroupReceipt:
    segments = segments_of(versions)
    samples = tuple(
        SampleReceipt(tokens=len(sample.token_ids), segments=segments, finish="length", preview=sample.text)
        for sample in payload.samples
    )
    return GroupReceipt(
        lease_id=lease.lease_id,
        attempt=lease.attempt,
        prompt_tokens=len(payload.prompt_ids),
        payload=ref,
        samples=samples,
    )


def _ids(lease: RolloutLease) -> list[str]:
    return [request_id(lease.prefix, sample) for sample in range(lease.group_size)]


def _versions_of(inference: InferenceControllerPort | None) -> Callable[[], Awaitable[WeightVersion]]:
    async def confirmed() -> WeightVersion:
        if inference is None:
            await checkpoint()
            return WeightVersion(0)
        versions = [version for version in (await inference.versions()).values() if version is not None]
        if not versions:
            raise EngineStale(engine="every member")
        return min(versions)

    return confirmed


_: type[RolloutExecutorPort] = ScriptedExecutor

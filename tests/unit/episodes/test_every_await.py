"""An attempt, disturbed at each of its awaits: it runs nowhere any more, and one abort takes what it stored."""

import anyio
import pytest

from backends.episodes.single_turn import SingleTurn
from backends.models.tokenizers import CharacterTokenizer
from backends.sim.payloads import ScriptedPayloads
from protocols.inference import Sampling, WeightsManifest
from protocols.messages import LeaseId, PayloadRef, RegistrationKey, WeightVersion, WorkerId
from protocols.prompts import Prompt, TextPrompt
from protocols.rollouts import RolloutLease
from tests.support.await_probe import Injection, enumerate_awaits
from tests.support.scripted.inference import ScriptedInference

LEASE = RolloutLease(
    lease_id=LeaseId("L1"),
    attempt=0,
    registration=RegistrationKey(),
    prompt=Prompt(position=0, content=TextPrompt(text="a")),
    group_size=2,
    sampling=Sampling(max_tokens=3),
    seed=0,
)
VOCABULARY = "".join(chr(0x4E00 + index) for index in range(99)) + "a"


class World:
    """One attempt and what it touches."""

    def __init__(self) -> None:
        self.payloads = ScriptedPayloads()
        self.inference = ScriptedInference()
        self.executor = SingleTurn(CharacterTokenizer(VOCABULARY, None), self.inference, self.payloads)

    async def play(self) -> None:
        payload = PayloadRef(owner="weights/", key="0")
        await self.inference.publish(
            WeightsManifest(version=WeightVersion(0), payload=payload, tensors=1, size_bytes=4)
        )
        await self.executor.generate(LEASE)


@pytest.mark.parametrize("injection", ["cancel_task", "cancel_main", "cancel_scope", "fail"])
def test_an_attempt_cut_anywhere_runs_nowhere_and_one_abort_clears_it(injection: Injection) -> None:
    """I44, I46: orphan rollouts. The windows between request, answer, payload and receipt are all awaits."""
    worlds: list[World] = []

    async def program() -> None:
        worlds.append(World())
        await worlds[-1].play()

    for trial in enumerate_awaits(program, injection):
        world = worlds[-1]
        assert world.inference.engines[WorkerId("engine/0")]._work.live == frozenset(), trial.site
        anyio.run(world.executor.abort, LEASE.prefix)
        assert world.payloads.held == {}, trial.site
    assert len(worlds) > 10

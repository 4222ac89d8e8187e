"""What scripted ports promise beyond the contracts that they pass with everybody else."""

import anyio
import pytest

from backends.sim.payloads import ScriptedPayloads
from protocols.errors import Aborted, EngineStale, InvariantError, Stalled, WorkerLost
from protocols.grading import Grade, GradeRequest
from protocols.inference import GenerateRequest, Generation, SampleRequest, Sampling, Segment, WeightsManifest
from protocols.messages import DispatchId, LeaseId, PayloadRef, RegistrationKey, WeightVersion, WorkerId
from protocols.prompts import Prompt
from protocols.rollouts import RolloutLease
from protocols.training import BatchLease, GroupRow, SampleRow, StageRequest
from tests.support.scripted.engine import ScriptedEngine
from tests.support.scripted.executor import ScriptedExecutor
from tests.support.scripted.inference import ScriptedInference
from tests.support.scripted.workloads import scripted_workloads


def _lease(prompt: Prompt, *, attempt: int = 0, number: int = 0) -> RolloutLease:
    return RolloutLease(
        lease_id=LeaseId(f"L{number}"),
        attempt=attempt,
        registration=RegistrationKey(),
        prompt=prompt,
        group_size=2,
        sampling=Sampling(max_tokens=4),
        seed=0,
    )


def _manifest(version: int) -> WeightsManifest:
    ref = PayloadRef(owner="weights/", key=str(version))
    return WeightsManifest(version=WeightVersion(version), payload=ref, tensors=1, size_bytes=8)


def _request(name: str, tokens: int, samples: int = 1) -> GenerateRequest:
    ids = [f"{name}/{sample}" for sample in range(samples)]
    return GenerateRequest(
        prompt_ids=(1, 2),
        samples=tuple(SampleRequest(request_id=one, stream=one) for one in ids),
        sampling=Sampling(max_tokens=tokens),
        stop_token_ids=(7,),
    )


async def _prompt(position: int = 0) -> Prompt:
    prompts = scripted_workloads(position + 1).prompts
    drawn = [await prompts.draw() for _ in range(position + 1)][-1]
    assert drawn is not None
    return drawn


async def test_workloads_walk_the_whole_path() -> None:
    work = scripted_workloads(1, step_s=2)
    staged = await work.trainer.stage_weights(StageRequest(owner="weights/", exclusive=True))
    await work.inference.publish(staged)
    prompt = await work.prompts.draw()
    assert prompt is not None
    lease = _lease(prompt)
    receipt = await work.executor.generate(lease)
    assert receipt.samples[0].segments == (Segment(version=WeightVersion(0), count=4),)
    report = await work.grader.grade(
        GradeRequest(lease_id=lease.lease_id, attempt=0, prompt=prompt, payload=receipt.payload, samples=(0, 1))
    )
    assert report.grades == (Grade(reward=0.0), Grade(reward=1.0))
    rows = tuple(SampleRow(sample=sample, advantage=0.5) for sample in (0, 1))
    group = GroupRow(lease_id=lease.lease_id, attempt=0, payload=receipt.payload, samples=rows)
    batch = BatchLease(
        dispatch_id=DispatchId("D0"), registration=RegistrationKey(), version=WeightVersion(0), groups=(group,)
    )
    step = await work.trainer.train_step(batch)
    assert (step.version, step.consumed) == (1, ("L0",))
    assert anyio.current_time() == pytest.approx(3)
    assert await work.prompts.draw() is None


async def test_a_readmitted_group_draws_the_same_tokens() -> None:
    """Streams come from seed, position and sample, never from lease or attempt."""
    payloads = ScriptedPayloads()
    executor = ScriptedExecutor(payloads)
    prompt = await _prompt()
    leases = [_lease(prompt), _lease(prompt, attempt=1), _lease(prompt, number=5)]
    stored = [await payloads.get((await executor.generate(lease)).payload) for lease in leases]
    assert stored[0] == stored[1] == stored[2]


async def test_an_abort_ends_the_playing_and_releases_the_payload() -> None:
    payloads = ScriptedPayloads()
    executor = ScriptedExecutor(payloads, duration_s=lambda lease: float("inf"))
    lease = _lease(await _prompt())
    seen: list[str] = []

    async def play() -> None:
        with pytest.raises(Aborted):
            await executor.generate(lease)
        seen.append("aborted")

    async with anyio.create_task_group() as group:
        group.start_soon(play)
        await anyio.sleep(1)
        assert len(executor.live) == 2
        report = await executor.abort(lease.prefix)
        assert seen == ["aborted"]
        assert report.confirmed == {f"{lease.prefix}0/0", f"{lease.prefix}1/0"}
    assert executor.live == frozenset()
    assert payloads.released == [lease.prefix]
    with pytest.raises(Aborted):
        await executor.generate(lease)
    assert (await executor.abort(lease.prefix)).confirmed == frozenset()


async def test_an_abort_of_one_lease_spares_another_whose_name_begins_alike() -> None:
    executor = ScriptedExecutor()
    prompt = await _prompt()
    first, eleventh = _lease(prompt, number=1), _lease(prompt, number=11)
    await executor.abort(first.prefix)
    assert (await executor.generate(eleventh)).lease_id == "L11"


async def test_a_lease_is_played_at_most_once_at_a_time() -> None:
    executor = ScriptedExecutor()
    lease = _lease(await _prompt())
    with pytest.RaisesGroup(InvariantError):
        async with anyio.create_task_group() as group:
            group.start_soon(executor.generate, lease)
            group.start_soon(executor.generate, lease)


async def test_an_executor_without_published_weights_is_refused() -> None:
    with pytest.raises(EngineStale):
        await ScriptedExecutor(inference=ScriptedInference()).generate(_lease(await _prompt()))


async def test_tokens_are_stamped_by_the_weights_that_began_them() -> None:
    """I29: a version read twice mislabelled the tokens of an update that landed in between."""
    engine = ScriptedEngine(token_s=1.0, version=WeightVersion(0))

    async def swap() -> None:
        await anyio.sleep(2.5)
        await engine.load_weights(_manifest(1))

    made: list[Generation] = []
    async with anyio.create_task_group() as group:
        group.start_soon(swap)
        made.append(await engine.generate(_request("a", 5)))
    assert made[0].completions[0].segments == (
        Segment(version=WeightVersion(0), count=3),
        Segment(version=WeightVersion(1), count=2),
    )


async def test_a_paused_engine_makes_no_token_after_pause_returned() -> None:
    """I24: a pause must wait for what is being admitted or made."""
    engine = ScriptedEngine(token_s=1.0, version=WeightVersion(0))
    ended: list[float] = []

    async def generate() -> None:
        await engine.generate(_request("a", 3))
        ended.append(anyio.current_time())

    async with anyio.create_task_group() as group:
        group.start_soon(generate)
        await anyio.sleep(1.5)
        await engine.pause()
        assert anyio.current_time() == pytest.approx(2)
        await anyio.sleep(10)
        assert ended == []
        await engine.resume()
    assert ended == [pytest.approx(13)]


async def test_samples_end_one_by_one_at_a_stop_token_or_at_their_length() -> None:
    lengths = {"a/0": 1, "a/1": 9, "a/2": 0}
    engine = ScriptedEngine(token_s=1.0, length=lambda sample: lengths[sample.request_id], version=WeightVersion(0))

    async def watch() -> None:
        await anyio.sleep(1.5)
        assert await engine.live_requests() == {"a/1"}

    made: list[Generation] = []
    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        made.append(await engine.generate(_request("a", 3, samples=3)))
    first, second, third = made[0].completions
    assert (first.token_ids, first.finish) == ((7,), "stop")
    assert (len(second.token_ids), second.finish) == (3, "length")
    assert 7 not in second.token_ids
    assert (third.token_ids, third.finish, third.segments) == ((), "stop", ())


async def test_a_member_that_does_not_confirm_is_stale() -> None:
    slow = WorkerId("engine/1")
    inference = ScriptedInference([WorkerId("engine/0"), slow], confirms=lambda member, _: member != slow)
    receipt = await inference.publish(_manifest(1))
    assert (receipt.confirmed, receipt.stale) == ({"engine/0"}, {"engine/1"})
    assert await inference.versions() == {"engine/0": 1, "engine/1": None}
    assert (await inference.prepare_rollout()).stale == {"engine/1"}
    with pytest.raises(Stalled):
        await ScriptedInference(confirms=lambda *_: False).publish(_manifest(1))


async def test_the_controller_balances_over_its_engines_and_aborts_on_all() -> None:
    inference = ScriptedInference([WorkerId("engine/0"), WorkerId("engine/1")], token_s=float("inf"))
    with pytest.raises(EngineStale):
        await inference.generate(_request("early", 1))
    await inference.publish(_manifest(0))

    async def generate(name: str) -> None:
        with pytest.raises(Aborted):
            await inference.generate(_request(f"t/{name}", 1))

    async with anyio.create_task_group() as group:
        for name in "ab":
            group.start_soon(generate, name)
            await anyio.sleep(1)
        assert [len(engine.requests) for engine in inference.engines.values()] == [1, 1]
        assert (await inference.abort("t/")).confirmed == {"t/a/0", "t/b/0"}
    assert await inference.live_requests() == frozenset()


async def test_a_lost_payload_is_a_lost_worker() -> None:
    with pytest.raises(WorkerLost):
        await ScriptedPayloads().get(PayloadRef(owner="o/", key="k"))

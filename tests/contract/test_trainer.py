"""What every ``TrainerPort`` does, in process and with each of its messages encoded and decoded."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from backends.sim.payloads import ScriptedPayloads
from backends.sim.trainer import ScriptedTrainer
from backends.trainers import torch as torch_trainer
from protocols.adapters import Host
from protocols.errors import InvariantError, PayloadLost, UserError
from protocols.messages import DispatchId, LeaseId, RegistrationKey
from protocols.training import CheckpointRequest, StageRequest, TrainerPort
from tests.support.batches import EXAMPLE, Drawn, Group, make_batch, site
from tests.support.wired import wired

OpenTrainer = Callable[[ScriptedPayloads], AbstractAsyncContextManager[TrainerPort]]


def _torch(payloads: ScriptedPayloads) -> AbstractAsyncContextManager[TrainerPort]:
    cfg = torch_trainer.Config(lr=1e-2, micro_batch_tokens=8)
    return torch_trainer.open(cfg, Host(site=site(), payloads=payloads))


@asynccontextmanager
async def _scripted(payloads: ScriptedPayloads) -> AsyncGenerator[TrainerPort]:
    yield ScriptedTrainer(payloads)


@pytest.fixture(
    params=[
        pytest.param(_torch, id="torch", marks=pytest.mark.real_time),
        pytest.param(wired(TrainerPort, _torch), id="torch-wired", marks=pytest.mark.real_time),
        pytest.param(_scripted, id="scripted"),
        pytest.param(wired(TrainerPort, _scripted), id="scripted-wired"),
    ]
)
def open_trainer(request: pytest.FixtureRequest) -> OpenTrainer:
    return request.param


async def test_a_step_consumes_its_leases_and_makes_the_next_version(open_trainer: OpenTrainer) -> None:
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        for step in range(3):
            batch = await make_batch(dispatch=step, version=step).store(payloads)
            report = await trainer.train_step(batch)
            assert report.dispatch_id == batch.dispatch_id
            assert report.version == step + 1
            assert report.mutated == "yes"
            assert report.consumed == (LeaseId("L0"), LeaseId("L1"))
            assert {"loss", "grad_norm"} <= report.metrics.keys()


async def test_accumulate_leaves_the_version_to_apply(open_trainer: OpenTrainer) -> None:
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        batch = await make_batch().store(payloads)
        accumulated = await trainer.accumulate(batch)
        assert accumulated.dispatch_id == batch.dispatch_id
        assert (await trainer.stage_weights(StageRequest(owner="w", exclusive=False))).version == 0
        assert await trainer.outcome(batch.dispatch_id) is None
        report = await trainer.apply(batch.dispatch_id)
        assert report.version == 1
        assert await trainer.outcome(batch.dispatch_id) == report


async def test_a_repeated_dispatch_returns_the_first_report(open_trainer: OpenTrainer) -> None:
    """A reply that was lost is asked for again, when the payloads are gone already."""
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        batch = await make_batch().store(payloads)
        first = await trainer.train_step(batch)
        await payloads.release("")
        assert await trainer.train_step(batch) == first
        assert (await trainer.stage_weights(StageRequest(owner="w", exclusive=False))).version == 1


async def test_only_the_last_step_has_an_outcome(open_trainer: OpenTrainer) -> None:
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        assert await trainer.outcome(DispatchId("D0")) is None
        await trainer.train_step(await make_batch(dispatch=0).store(payloads))
        last = await trainer.train_step(await make_batch(dispatch=1, version=1).store(payloads))
        assert await trainer.outcome(DispatchId("D0")) is None
        assert await trainer.outcome(DispatchId("D1")) == last


async def test_what_is_not_bound_to_this_trainer_is_refused(open_trainer: OpenTrainer) -> None:
    """Law 2: no group is trained twice; and no batch is trained on other parameters than it was made for."""
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        await trainer.train_step(await make_batch().store(payloads))
        good = await make_batch(dispatch=1, version=1).store(payloads)
        group = good.groups[0]
        refused = [
            msgspec.structs.replace(good, version=0),
            msgspec.structs.replace(good, version=2),
            await make_batch(dispatch=1, version=1, registration=RegistrationKey(registration_id=2)).store(payloads),
            msgspec.structs.replace(good, groups=(group, group)),
            msgspec.structs.replace(
                good, groups=(msgspec.structs.replace(group, samples=(group.samples[0], group.samples[0])),)
            ),
        ]
        for batch in refused:
            with pytest.raises(InvariantError):
                await trainer.train_step(batch)
            with pytest.raises(InvariantError):
                await trainer.accumulate(batch)
        assert (await trainer.train_step(good)).version == 2


async def test_a_lost_payload_trains_nothing(open_trainer: OpenTrainer) -> None:
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        batch = await make_batch().store(payloads)
        await payloads.release(batch.groups[1].payload.owner)
        with pytest.raises(PayloadLost) as caught:
            await trainer.train_step(batch)
        assert (caught.value.owner, caught.value.others) == (batch.groups[1].payload.owner, ())
        await trainer.discard()
        assert await trainer.outcome(batch.dispatch_id) is None
        await make_batch().store(payloads)
        assert (await trainer.train_step(batch)).version == 1


async def test_apply_wants_what_was_accumulated(open_trainer: OpenTrainer) -> None:
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        batch = await make_batch().store(payloads)
        with pytest.raises(InvariantError):
            await trainer.apply(batch.dispatch_id)
        await trainer.accumulate(batch)
        with pytest.raises(InvariantError):
            await trainer.apply(DispatchId("D9"))
        await trainer.apply(batch.dispatch_id)
        with pytest.raises(InvariantError):
            await trainer.apply(batch.dispatch_id)


async def test_an_open_window_takes_no_second_batch(open_trainer: OpenTrainer) -> None:
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        first = await make_batch(dispatch=0).store(payloads)
        second = await make_batch(dispatch=1).store(payloads)
        await trainer.accumulate(first)
        with pytest.raises(InvariantError):
            await trainer.accumulate(second)
        assert (await trainer.apply(first.dispatch_id)).version == 1


async def test_discard_ends_the_window(open_trainer: OpenTrainer) -> None:
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        await trainer.discard()
        batch = await make_batch().store(payloads)
        await trainer.accumulate(batch)
        await trainer.discard()
        await trainer.discard()
        with pytest.raises(InvariantError):
            await trainer.apply(batch.dispatch_id)
        assert (await trainer.train_step(batch)).version == 1


async def test_a_cancelled_step_can_be_discarded_and_taken_again(open_trainer: OpenTrainer) -> None:
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        batch = await make_batch().store(payloads)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await trainer.train_step(batch)
        assert scope.cancelled_caught
        await trainer.discard()
        assert await trainer.outcome(batch.dispatch_id) is None
        assert (await trainer.train_step(batch)).version == 1


async def test_every_call_reaches_a_checkpoint(open_trainer: OpenTrainer, tmp_path: Path) -> None:
    """A loop of calls that never yields cannot be cancelled, and starves everyone else."""
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        batch = await make_batch().store(payloads)
        await trainer.train_step(batch)
        calls = [
            lambda: trainer.accumulate(batch),
            lambda: trainer.apply(batch.dispatch_id),
            trainer.discard,
            lambda: trainer.train_step(batch),
            lambda: trainer.outcome(batch.dispatch_id),
            lambda: trainer.stage_weights(StageRequest(owner="w", exclusive=True)),
            trainer.snapshot,
            lambda: trainer.save(CheckpointRequest(path=str(tmp_path))),
            lambda: trainer.load(CheckpointRequest(path=str(tmp_path))),
        ]
        for call in calls:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught


async def test_staged_weights_lie_in_the_store_under_their_version(open_trainer: OpenTrainer) -> None:
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        for exclusive in (True, False):
            request = StageRequest(owner=f"weights/{exclusive}", exclusive=exclusive)
            manifest = await trainer.stage_weights(request)
            assert await trainer.stage_weights(request) == manifest
            assert manifest.payload.owner == request.owner
            staged = await payloads.get(manifest.payload)
            assert isinstance(staged, Mapping)
            assert manifest.tensors == len(staged)
            assert manifest.size_bytes > 0
        await trainer.train_step(await make_batch().store(payloads))
        later = await trainer.stage_weights(request)
        assert later.version == 1
        assert later.payload != manifest.payload


async def test_load_continues_where_save_stood(open_trainer: OpenTrainer, tmp_path: Path) -> None:
    payloads = ScriptedPayloads()
    request = CheckpointRequest(path=str(tmp_path))
    async with open_trainer(payloads) as trainer:
        await trainer.train_step(await make_batch().store(payloads))
        assert await trainer.save(request) == 1
        expected = await trainer.train_step(await make_batch(dispatch=1, version=1).store(payloads))
    async with open_trainer(payloads) as trainer:
        assert await trainer.load(request) == 1
        batch = make_batch(dispatch=1, version=1).lease
        assert await trainer.train_step(batch) == expected
        assert await trainer.load(request) == 1
        assert await trainer.train_step(batch) == expected


async def test_a_snapshot_is_saved_as_it_was_while_steps_go_on(open_trainer: OpenTrainer, tmp_path: Path) -> None:
    """Issue C: training goes on while a checkpoint is written; what is written is the version that was copied."""
    payloads = ScriptedPayloads()
    request = CheckpointRequest(path=str(tmp_path))
    first, second = make_batch(), make_batch(dispatch=1, version=1)
    async with open_trainer(payloads) as trainer:
        await trainer.train_step(await first.store(payloads))
        await trainer.snapshot()
        assert await trainer.snapshot() == 1
        await second.store(payloads)
        async with anyio.create_task_group() as group:
            group.start_soon(trainer.save, request)
            expected = await trainer.train_step(second.lease)
        assert await trainer.load(request) == 1
        assert await trainer.train_step(second.lease) == expected


async def test_without_a_snapshot_what_there_is_is_saved(open_trainer: OpenTrainer, tmp_path: Path) -> None:
    """A snapshot is saved once: the next save is of its own moment, not of an old one."""
    payloads = ScriptedPayloads()
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    async with open_trainer(payloads) as trainer:
        await trainer.snapshot()
        await trainer.train_step(await make_batch().store(payloads))
        assert await trainer.save(CheckpointRequest(path=str(old))) == 0
        assert await trainer.save(CheckpointRequest(path=str(new))) == 1
        assert await trainer.load(CheckpointRequest(path=str(new))) == 1


async def test_a_folder_that_save_did_not_write_is_the_users_error(open_trainer: OpenTrainer, tmp_path: Path) -> None:
    async with open_trainer(ScriptedPayloads()) as trainer:
        for path in (tmp_path, tmp_path / "nowhere"):
            with pytest.raises(UserError, match=str(path)):
                await trainer.load(CheckpointRequest(path=str(path)))


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param((), id="no groups"),
        pytest.param((Group((1,), ()),), id="no samples"),
        pytest.param((Group((1,), [Drawn((2, 3), weight=0.0), Drawn((4,), weight=0.0)]),), id="all masked"),
        pytest.param((Group((1,), [Drawn(()), Drawn(())]),), id="all empty"),
        pytest.param((Group((1,), [Drawn((2, 3), 0.0), Drawn((4,), 0.0)]),), id="no advantage"),
    ],
)
async def test_a_batch_that_teaches_nothing_is_a_legal_step(
    open_trainer: OpenTrainer, groups: tuple[Group, ...]
) -> None:
    payloads = ScriptedPayloads()
    async with open_trainer(payloads) as trainer:
        await trainer.train_step(await make_batch(EXAMPLE).store(payloads))
        report = await trainer.train_step(await make_batch(groups, dispatch=1, version=1).store(payloads))
        assert report.version == 2
        assert report.consumed == tuple(LeaseId(f"L{index}") for index in range(len(groups)))

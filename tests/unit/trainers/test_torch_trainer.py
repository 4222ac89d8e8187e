"""What the port adds to the learner: a thread, cancellation, the payload store, files."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
import torch
from anyio.lowlevel import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

from backends.models.loading import load_module
from backends.models.opening import load_tokenizer
from backends.sim.payloads import ScriptedPayloads
from backends.trainers import torch as adapter
from backends.trainers.torch import Config
from backends.trainers.torch.compute import Compute
from backends.trainers.torch.learner import Learner
from backends.trainers.torch.models import Models
from backends.trainers.torch.trainer import TorchTrainer
from protocols.adapters import Host
from protocols.errors import PayloadLost, PortFailed, UserError
from protocols.sections import Section, Site
from protocols.training import CheckpointRequest, StageRequest
from tests.support.batches import Drawn, Group, make_batch, site

pytestmark = pytest.mark.real_time

CONFIG = Config(lr=1e-2, micro_batch_tokens=1)  # a micro-batch for each of the five samples


class _Tokenizer:
    """Saves when it may, in a thread."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.hold: threading.Event | None = None
        self.reached = threading.Event()
        self.saved = False

    def save(self, folder: Path) -> None:
        self.reached.set()
        if self.hold is not None:
            assert self.hold.wait(30)
        self._tokenizer.save(folder)
        self.saved = True


class Bench:
    """A trainer that can be looked into, and whose micro-batches can be watched."""

    def __init__(self) -> None:
        self.payloads = ScriptedPayloads()
        self.compute = Compute(None)
        self.loop = anyio.lowlevel.current_token()
        self.on_pass: Callable[[], Any] = lambda: None
        self.passes = 0
        self.learner = Learner(Models(load_module(site())), CONFIG, site=site(), interrupt=self._interrupt)
        self.tokenizer: Any = _Tokenizer(load_tokenizer(site()))
        self.trainer = TorchTrainer(self.learner, self.tokenizer, compute=self.compute, payloads=self.payloads)

    @property
    def values(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.learner.module.parameters()]).clone()

    @property
    def idle(self) -> bool:
        """Whether no gradients are held."""
        return not any(parameter.grad.any() for parameter in self.learner.module.parameters())

    def on_loop(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run ``function`` on the event loop, from the thread that computes."""
        anyio.from_thread.run(function, *args, token=self.loop)

    def _interrupt(self) -> None:
        self.passes += 1
        self.on_pass()
        self.compute.interrupt()


async def _delivered(act: Callable[..., object], *args: Any) -> None:
    """Act, and wait until everybody has taken notice."""
    act(*args)
    await anyio.wait_all_tasks_blocked()


async def _step(bench: Bench) -> torch.Tensor:
    version = bench.learner.version
    batch = await make_batch(dispatch=version, version=version).store(bench.payloads)
    report = await bench.trainer.train_step(batch)
    assert report.version == version + 1
    return bench.values


@pytest.mark.parametrize("method", ["train_step", "accumulate"])
async def test_cancelling_stops_between_two_micro_batches_and_leaves_no_trace(method: str) -> None:
    bench = Bench()
    before = bench.values
    batch = await make_batch().store(bench.payloads)
    with anyio.CancelScope() as scope:
        bench.on_pass = lambda: bench.passes == 3 and bench.on_loop(_delivered, scope.cancel)
        await getattr(bench.trainer, method)(batch)
    assert scope.cancelled_caught
    assert bench.passes == 3
    assert torch.equal(bench.values, before)
    assert bench.idle
    assert await bench.trainer.outcome(batch.dispatch_id) is None
    assert torch.equal(await _step(bench), await _step(Bench()))


@pytest.mark.parametrize("times", [1, 2])
async def test_a_native_cancel_stops_the_thread_as_well(times: int) -> None:
    """A shield stops no ``Task.cancel``: a second one ends the wait, and the next call still comes after the job."""
    bench = Bench()
    batch = await make_batch().store(bench.payloads)
    task = asyncio.create_task(bench.trainer.train_step(batch))

    async def desert() -> None:
        for _ in range(times):
            await _delivered(task.cancel)
        assert task.done() == (times == 2)

    bench.on_pass = lambda: bench.passes == 2 and bench.on_loop(desert)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await bench.trainer.outcome(batch.dispatch_id) is None
    assert bench.passes == 2
    assert bench.idle
    assert torch.equal(await _step(bench), await _step(Bench()))


async def test_an_outcome_asked_for_during_a_step_is_the_steps() -> None:
    """In doubt is what is under way: an answer before it ends would let it count as never done."""
    bench = Bench()
    batch = await make_batch().store(bench.payloads)
    outcomes: list[Any] = []
    reports: list[Any] = []

    async def ask() -> None:
        outcomes.append(await bench.trainer.outcome(batch.dispatch_id))

    async with anyio.create_task_group() as group:
        bench.on_pass = lambda: bench.passes == 1 and bench.on_loop(_delivered, group.start_soon, ask)
        reports.append(await bench.trainer.train_step(batch))
    assert outcomes == reports


async def test_the_loop_goes_on_while_a_step_computes() -> None:
    bench = Bench()
    batch = await make_batch().store(bench.payloads)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        beats += 1
        await checkpoint()

    bench.on_pass = lambda: bench.on_loop(beat)
    await bench.trainer.train_step(batch)
    assert beats == bench.passes == 5


async def test_a_token_that_the_model_does_not_have_is_no_foreign_exception() -> None:
    bench = Bench()
    batch = await make_batch([Group((1,), [Drawn((2, 99, 3))])]).store(bench.payloads)
    with pytest.raises(PortFailed):
        await bench.trainer.train_step(batch)
    assert bench.idle


async def test_where_one_payload_is_lost_all_that_are_lost_are_named_also_those_of_other_ranks() -> None:
    """A node went with a batch: each of its groups cost a step of all ranks and a meeting, one after the other."""
    bench = Bench()
    bench.learner.layout.ranks.world = 2  # groups 1 and 3 are the other rank's
    batch = await make_batch([Group((1,), [Drawn((2, 3))])] * 4).store(bench.payloads)
    owners = [group.payload.owner for group in batch.groups]
    for index in (0, 2, 3):
        await bench.payloads.release(owners[index])
    with pytest.raises(PayloadLost) as caught:
        await bench.trainer.train_step(batch)
    assert (caught.value.owner, *caught.value.others) == (owners[0], owners[2], owners[3])
    assert bench.idle


async def test_exclusive_weights_are_lent_and_others_copied() -> None:
    bench = Bench()
    lent = await bench.trainer.stage_weights(StageRequest(owner="lent", exclusive=True))
    copied = await bench.trainer.stage_weights(StageRequest(owner="copied", exclusive=False))
    own = dict(bench.learner.module.named_parameters())
    shared: Any = await bench.payloads.get(lent.payload)
    apart: Any = await bench.payloads.get(copied.payload)
    assert shared.keys() == apart.keys() == own.keys()
    assert lent.tensors == len(own)
    assert lent.size_bytes == sum(parameter.nbytes for parameter in own.values())
    before = {name: parameter.detach().clone() for name, parameter in own.items()}
    await _step(bench)
    assert not any(tensor.requires_grad for tensor in (*shared.values(), *apart.values()))
    assert all(shared[name].data_ptr() == parameter.data_ptr() for name, parameter in own.items())
    assert all(torch.equal(apart[name], tensor) for name, tensor in before.items())
    assert not all(torch.equal(shared[name], tensor) for name, tensor in before.items())


async def test_a_saved_folder_is_a_model_with_its_tokenizer(tmp_path: Path) -> None:
    bench = Bench()
    await _step(bench)
    await bench.trainer.save(CheckpointRequest(path=str(tmp_path)))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    theirs = torch.cat([parameter.detach().flatten() for parameter in loaded.parameters()])
    assert torch.equal(theirs, bench.values)
    assert AutoTokenizer.from_pretrained(tmp_path).encode("12+") == [1, 2, 10]


async def test_a_snapshot_is_written_while_a_step_computes(tmp_path: Path) -> None:
    """Issue C: training goes on while a checkpoint is written."""
    bench = Bench()
    before = await _step(bench)
    assert await bench.trainer.snapshot() == 1
    batch = await make_batch(dispatch=1, version=1).store(bench.payloads)
    saved: list[int] = []

    async def save() -> None:
        saved.append(await bench.trainer.save(CheckpointRequest(path=str(tmp_path))))

    bench.on_pass = lambda: saved or bench.on_loop(save)  # the step waits for it, which would never end
    with anyio.fail_after(30):
        await bench.trainer.train_step(batch)
    assert saved == [1]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(torch.cat([parameter.detach().flatten() for parameter in loaded.parameters()]), before)


async def test_a_trainer_is_left_when_what_it_writes_is_written(tmp_path: Path) -> None:
    """A native cancel passes through every shield; the thread must not write on in a run that has ended."""
    bench = Bench()
    await bench.trainer.snapshot()
    bench.tokenizer.hold = threading.Event()
    task = asyncio.create_task(bench.trainer.save(CheckpointRequest(path=str(tmp_path))))
    await anyio.to_thread.run_sync(bench.tokenizer.reached.wait, 30)
    for _ in range(2):  # the first one is heard, and waits for the thread
        await _delivered(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    closing = asyncio.create_task(bench.trainer.close())
    await bench.compute.run(lambda: None)
    assert not closing.done()
    bench.tokenizer.hold.set()
    with anyio.fail_after(30):
        await closing
    assert bench.tokenizer.saved


@asynccontextmanager
async def _opened(options: Config, model: Section | None) -> AsyncGenerator[Any]:
    host = Host(site=Site(job_dir="/", model=model), payloads=ScriptedPayloads())
    async with adapter.open(options, host) as trainer:
        yield trainer


async def test_opening_warms_up_without_a_step() -> None:
    async with _opened(CONFIG, site().model) as trainer:
        manifest = await trainer.stage_weights(StageRequest(owner="w", exclusive=True))
        assert manifest.version == 0


async def test_a_model_that_cannot_be_loaded_is_the_users_error() -> None:
    with pytest.raises(UserError):
        async with _opened(CONFIG, Section(kind="pretrained", options={"path": "./nowhere"})):
            pass


def test_threads_are_set_in_the_thread_that_computes() -> None:
    async def threads() -> int:
        return await Compute(1).run(torch.get_num_threads)

    before = torch.get_num_threads()
    try:
        assert anyio.run(threads) == 1
    finally:
        torch.set_num_threads(before)

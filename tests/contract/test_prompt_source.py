"""What every prompt source keeps to."""

import importlib
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.prompts import datasets, function, jsonl, reasoning_gym
from backends.sim.payloads import ScriptedPayloads
from backends.sim.prompts import ScriptedPrompts
from protocols.adapters import Host
from protocols.errors import DataFault, UserError
from protocols.prompts import ChatPrompt, Prompt, PromptSourcePort, SourceState, TextPrompt
from protocols.sections import Site
from tests.support.texts import exactly
from tests.support.wired import wired

OpenSource = Callable[..., AbstractAsyncContextManager[PromptSourcePort]]
"""``(count, *, epochs=1, seed=0, bad=())``: ``count`` different prompts an epoch; those at ``bad`` are unreadable."""

FUNCTION = """
def prompt(index, seed):
    if index in {bad}:
        raise ValueError("no such task")
    return {{"prompt": f"p{{index}}", "answer": index}}
"""


def _host(folder: Path, seed: int) -> Host:
    return Host(site=Site(job_dir=str(folder), seed=seed), payloads=ScriptedPayloads())


def _jsonl(folder: Path, *, shuffle: bool) -> OpenSource:
    @asynccontextmanager
    async def opened(
        count: int, *, epochs: int | None = 1, seed: int = 0, bad: tuple[int, ...] = ()
    ) -> AsyncGenerator[PromptSourcePort]:
        lines = [
            "{" if index in bad else json.dumps({"prompt": f"p{index}", "answer": index}) for index in range(count)
        ]
        path = folder / "prompts.jsonl"
        path.write_text("\n".join(lines) + "\n")
        cfg = jsonl.Config(path=path.name, epochs=epochs, shuffle=shuffle)
        async with jsonl.open(cfg, _host(folder, seed)) as source:
            yield source

    return opened


def _function(folder: Path) -> OpenSource:
    @asynccontextmanager
    async def opened(
        count: int, *, epochs: int | None = 1, seed: int = 0, bad: tuple[int, ...] = ()
    ) -> AsyncGenerator[PromptSourcePort]:
        path = folder / f"prompts_{'_'.join(map(str, bad))}.py"
        path.write_text(FUNCTION.format(bad=bad))
        cfg = function.Config(function=f"{path.name}:prompt", epoch_length=count, epochs=epochs)
        async with function.open(cfg, _host(folder, seed)) as source:
            yield source

    return opened


def _datasets(folder: Path) -> OpenSource:
    hugging_face = pytest.importorskip("datasets", reason="pip install 'conductor-rl[datasets]'")

    @asynccontextmanager
    async def opened(
        count: int, *, epochs: int | None = 1, seed: int = 0, bad: tuple[int, ...] = ()
    ) -> AsyncGenerator[PromptSourcePort]:
        path = folder / f"prompts_{count}_{'_'.join(map(str, bad))}"
        if not path.exists():
            rows = [{"prompt": "" if index in bad else f"p{index}", "answer": index} for index in range(count)]
            hugging_face.Dataset.from_list(rows).save_to_disk(str(path))
        cfg = datasets.Config(path=path.name, epochs=epochs, shuffle=True)
        async with datasets.open(cfg, _host(folder, seed)) as source:
            yield source

    return opened


def _reasoning_gym(folder: Path) -> OpenSource:
    pytest.importorskip("reasoning_gym", reason="pip install 'conductor-rl[reasoning]'")
    counted_tasks = importlib.import_module("tests.support.counted_tasks")

    @asynccontextmanager
    async def opened(
        count: int, *, epochs: int | None = 1, seed: int = 0, bad: tuple[int, ...] = ()
    ) -> AsyncGenerator[PromptSourcePort]:
        cfg = reasoning_gym.Config(dataset=counted_tasks.NAME, config={"bad": bad}, size=count, epochs=epochs)
        async with reasoning_gym.open(cfg, _host(folder, seed)) as source:
            yield source

    return opened


@asynccontextmanager
async def _scripted(
    count: int, *, epochs: int | None = 1, seed: int = 0, bad: tuple[int, ...] = ()
) -> AsyncGenerator[PromptSourcePort]:
    yield ScriptedPrompts(count, epochs=epochs, seed=seed, unreadable=bad)


@pytest.fixture(params=["jsonl", "jsonl-shuffled", "function", "datasets", "reasoning_gym", "scripted"])
def open_direct(request: pytest.FixtureRequest, tmp_path: Path) -> OpenSource:
    match request.param:
        case "jsonl":
            return _jsonl(tmp_path, shuffle=False)
        case "jsonl-shuffled":
            return _jsonl(tmp_path, shuffle=True)
        case "function":
            return _function(tmp_path)
        case "datasets":
            return _datasets(tmp_path)
        case "reasoning_gym":
            return _reasoning_gym(tmp_path)
        case _:
            return _scripted


@pytest.fixture(params=["direct", "wired"])
def open_source(request: pytest.FixtureRequest, open_direct: OpenSource) -> OpenSource:
    return open_direct if request.param == "direct" else wired(PromptSourcePort, open_direct)


async def draw_all(source: PromptSourcePort, most: int = 1000) -> list[Prompt]:
    drawn: list[Prompt] = []
    while len(drawn) < most and (prompt := await source.draw()) is not None:
        drawn.append(prompt)
    return drawn


def text(prompt: Prompt) -> str:
    match prompt.content:
        case TextPrompt(text=text):
            return text
        case ChatPrompt(messages=messages):
            return messages[-1].content
        case content:
            raise AssertionError(content)


@pytest.mark.parametrize(("count", "epochs"), [(5, 1), (3, 4), (1, 2)])
async def test_each_epoch_holds_every_prompt_once_and_then_it_ends(
    open_source: OpenSource, count: int, epochs: int
) -> None:
    """I56: an epoch without end, and a last batch that was missed."""
    async with open_source(count, epochs=epochs) as source:
        drawn = await draw_all(source)
        assert [prompt.position for prompt in drawn] == list(range(count * epochs))
        assert [prompt.epoch for prompt in drawn] == [epoch for epoch in range(epochs) for _ in range(count)]
        for epoch in range(epochs):
            assert len({text(prompt) for prompt in drawn if prompt.epoch == epoch}) == count
        assert await source.epoch_length() == count
        assert [await source.draw() for _ in range(3)] == [None] * 3
        assert (await source.state()).position == count * epochs


async def test_without_a_number_of_epochs_it_goes_on(open_source: OpenSource) -> None:
    async with open_source(2, epochs=None) as source:
        drawn = await draw_all(source, most=50)
        assert [prompt.epoch for prompt in drawn] == [position // 2 for position in range(50)]


async def test_the_same_seed_draws_the_same_prompts(open_source: OpenSource) -> None:
    async with open_source(20, epochs=2, seed=7) as first:
        expected = await draw_all(first)
    async with open_source(20, epochs=2, seed=7) as second:
        assert await draw_all(second) == expected


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(1, 7), epochs=st.integers(1, 3), cut=st.integers(0, 25), seed=st.integers(0, 3))
async def test_a_restored_source_continues_as_the_uninterrupted_one(
    open_source: OpenSource, count: int, epochs: int, cut: int, seed: int
) -> None:
    """I51, I52, I56: after a resume the order was wrong, the epoch was wrong, or the data began anew."""
    async with open_source(count, epochs=epochs, seed=seed) as source:
        whole = await draw_all(source)
    async with open_source(count, epochs=epochs, seed=seed) as source:
        before = await draw_all(source, most=cut)
        state = await source.state()
        assert state.position == len(before)
    async with open_source(count, epochs=epochs, seed=seed) as source:
        await source.restore(state)
        assert before + await draw_all(source) == whole
        await source.restore(state)
        assert before + await draw_all(source) == whole, "the end is no end for a source that is set back"


async def test_state_says_what_comes_next(open_source: OpenSource) -> None:
    async with open_source(3, epochs=None, seed=5) as source:
        for position in range(8):
            assert await source.state() == SourceState(position=position, seed=5)
            prompt = await source.draw()
            assert prompt is not None
            assert prompt.position == position


OTHER_SEED = "seed = 1: the prompts were drawn with seed 2; set seed = 2 to go on, or begin a new run"


async def test_a_state_of_another_seed_is_refused(open_source: OpenSource) -> None:
    async with open_source(3, seed=1) as source:
        with pytest.raises(UserError, match=exactly(OTHER_SEED)):
            await source.restore(SourceState(position=2, seed=2))
        assert (await source.state()).position == 0


async def test_an_unreadable_prompt_is_a_fault_and_the_next_goes_on_behind_it(open_source: OpenSource) -> None:
    """W17: one bad record harms itself only."""
    async with open_source(4, bad=(1, 2)) as source:
        drawn: list[Prompt] = []
        faults = 0
        for _ in range(4):
            try:
                prompt = await source.draw()
            except DataFault:
                faults += 1
            else:
                assert prompt is not None
                drawn.append(prompt)
        assert faults == 2
        assert len({prompt.position for prompt in drawn}) == 2
        assert await source.draw() is None
        assert (await source.state()).position == 4


async def test_the_fingerprint_tells_data_apart_and_nothing_else(open_source: OpenSource) -> None:
    """Resuming on data that was changed meanwhile must be noticed."""
    async with open_source(3) as source:
        fingerprint = await source.fingerprint()
        await source.draw()
        assert await source.fingerprint() == fingerprint
    async with open_source(3) as source:
        assert await source.fingerprint() == fingerprint
    async with open_source(4) as source:
        assert await source.fingerprint() != fingerprint


async def test_every_call_reaches_a_checkpoint_and_loses_no_prompt(open_source: OpenSource) -> None:
    """A draw that was cancelled is not counted in the state, or its prompt would be lost."""
    async with open_source(1, epochs=1) as source:
        state = await source.state()
        calls = [source.draw, source.state, lambda: source.restore(state), source.fingerprint, source.epoch_length]
        for call in calls:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught
        assert len(await draw_all(source)) == 1
        with anyio.CancelScope() as scope:
            scope.cancel()
            await source.draw()
        assert scope.cancelled_caught, "at the end, too"

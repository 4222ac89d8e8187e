"""Tasks of reasoning-gym as prompts, and what is found out about a generator before a run."""

from collections.abc import Sequence

import pytest

from backends.prompts import reasoning_gym
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.errors import Problem, UserError
from protocols.prompts import ChatPrompt, Prompt
from protocols.sections import Site

pytest.importorskip("reasoning_gym", reason="pip install 'conductor-rl[reasoning]'")

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}


def site(seed: int = 0) -> Site:
    return Site(job_dir="/", seed=seed)


def problems(dataset: str, **config: object) -> Sequence[Problem]:
    return reasoning_gym.check(reasoning_gym.Config(dataset=dataset, config=config, size=10), site())


async def draw_all(cfg: reasoning_gym.Config, seed: int = 0, most: int = 1000) -> list[Prompt]:
    async with reasoning_gym.open(cfg, Host(site=site(seed), payloads=ScriptedPayloads())) as source:
        drawn: list[Prompt] = []
        while len(drawn) < most and (prompt := await source.draw()) is not None:
            drawn.append(prompt)
        return drawn


def roles(prompt: Prompt) -> list[str]:
    assert isinstance(prompt.content, ChatPrompt)
    return [message.role for message in prompt.content.messages]


def questions(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.fields["question"] for prompt in prompts]


async def test_a_task_is_a_conversation_and_its_verifiers_fields() -> None:
    cfg = reasoning_gym.Config(dataset="chain_sum", config=SUMS, size=1, epochs=1, system="Be brief.")
    (prompt,) = await draw_all(cfg)
    assert isinstance(prompt.content, ChatPrompt)
    assert [(message.role, message.content) for message in prompt.content.messages] == [
        ("system", "Be brief."),
        ("user", prompt.fields["question"]),
    ]
    assert prompt.fields.keys() == {"dataset", "config", "question", "answer", "metadata"}
    assert (prompt.fields["dataset"], prompt.fields["config"]) == ("chain_sum", SUMS)


async def test_examples_are_solved_and_the_same_for_every_question_and_seed() -> None:
    """Training and evaluation show the same examples, or the second would measure another task."""
    cfg = reasoning_gym.Config(dataset="chain_sum", config=SUMS, size=2, epochs=1, examples=2)
    prompts = [*await draw_all(cfg, seed=1), *await draw_all(cfg, seed=2)]
    assert roles(prompts[0]) == ["user", "assistant", "user", "assistant", "user"]
    shown = {prompt.content.messages[:-1] for prompt in prompts if isinstance(prompt.content, ChatPrompt)}
    assert len(shown) == 1
    assert all(turn.content.removeprefix("-").isdigit() for turn in next(iter(shown)) if turn.role == "assistant")


async def test_neighbouring_seeds_share_no_range_of_tasks() -> None:
    """reasoning-gym makes task i out of seed + i: seeds 1 and 2 as they are would share all tasks but one."""
    cfg = reasoning_gym.Config(dataset="chain_sum", config={**SUMS, "max_digits": 6, "min_digits": 6}, size=50)
    first, second = [questions(await draw_all(cfg, seed=seed, most=50)) for seed in (1, 2)]
    assert not set(first) & set(second)
    assert len(set(first)) == 50


async def test_the_same_seed_makes_the_same_tasks_in_every_epoch() -> None:
    cfg = reasoning_gym.Config(dataset="spell_backward", size=5, epochs=2)
    drawn = await draw_all(cfg, seed=4)
    assert questions(drawn[:5]) == questions(drawn[5:])
    assert drawn == await draw_all(cfg, seed=4)


def test_a_generator_that_works_is_no_problem() -> None:
    assert not problems("chain_sum", **SUMS)


@pytest.mark.parametrize("dataset", ["boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"])
def test_a_verifier_that_refuses_the_generators_own_answer_is_a_problem(dataset: str) -> None:
    """COMPONENTS.md: a run on one of these earns next to nothing, whatever the model learns."""
    (problem,) = problems(dataset)
    assert problem.field == "prompts.dataset"
    assert "its own answer scores 0" in problem.why


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_answer_that_does_not_survive_a_message_is_a_problem() -> None:
    """The verifier of arc_agi compares tuples, and messages bring lists."""
    (problem,) = problems("arc_agi")
    assert "its own answer scores 0.05" in problem.why


def test_values_of_numpy_cross_as_plain_ones() -> None:
    assert not problems("knights_knaves")


@pytest.mark.parametrize(
    ("dataset", "config", "field", "why", "mend"),
    [
        ("chain_sumn", {}, "prompts.dataset", "no such dataset", "'chain_sum'"),
        ("zzzzzz", {}, "prompts.dataset", "no such dataset", "DATASETS"),
        ("chain_sum", {"min_termz": 2}, "prompts.config.min_termz", "no such option", "'min_terms'"),
        ("chain_sum", {"zzz": 2}, "prompts.config.zzz", "no such option", "it has min_terms"),
        ("chain_sum", {"seed": 2}, "prompts.config.seed", "not the generator's", "run's seed"),
        ("chain_sum", {"size": 2}, "prompts.config.size", "not the generator's", "prompts.size"),
        ("chain_sum", {"min_terms": -1}, "prompts.config", "min_terms must be positive", "configuration"),
        ("chain_sum", {"min_terms": "a"}, "prompts.config", "TypeError", "configuration"),
        ("composite", {}, "prompts.config", "at least one dataset", "configuration"),
    ],
)
def test_mistakes_are_named_with_their_mend(
    dataset: str, config: dict[str, object], field: str, why: str, mend: str
) -> None:
    (problem,) = problems(dataset, **config)
    assert problem.field == field
    assert why in problem.why
    assert mend in problem.mend


async def test_opening_what_was_not_checked_is_the_users_error() -> None:
    with pytest.raises(UserError, match="min_terms must be positive"):
        await draw_all(reasoning_gym.Config(dataset="chain_sum", config={"min_terms": -1}))

"""What is wrong between fields, and what adapters say about their sections."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from conductor.config import FleetConfig, RoleConfig, RunConfig
from conductor.validation import find_problems, find_problems_between, find_remainder_problem, site_of
from protocols.adapters import known_kinds
from protocols.inference import Sampling
from protocols.sections import Section
from tests.unit.config import stub_adapters

STUBS = "tests.unit.config.stub_adapters"
GOOD = Section(kind=f"{STUBS}:good")
EVERYTHING = ("model", "prompts", "reward", "episode", "engine", "train", "backend", "ledger", "trackers")


def job(**fields: Any) -> RunConfig:
    base: dict[str, Any] = {name: GOOD for name in EVERYTHING if name != "trackers"}
    base |= {"steps": 1, "batch_groups": 4, "group_size": 2, "sampling": Sampling(max_tokens=8), "trackers": (GOOD,)}
    return RunConfig(**(base | fields))


def texts(cfg: RunConfig, given: tuple[str, ...] = ()) -> list[str]:
    return [str(problem) for problem in find_problems(cfg, given=given)]


def test_a_job_that_is_right_has_no_problems() -> None:
    assert texts(job()) == []


@pytest.mark.parametrize("field", EVERYTHING)
def test_a_section_whose_workload_was_handed_over_needs_no_adapter(field: str) -> None:
    broken = Section(kind="nowhere:at_all")
    cfg = job(**{field: (broken,) if field == "trackers" else broken})
    assert len(texts(cfg)) == 1
    assert texts(cfg, given=(field,)) == []


EQUAL = "all 2 samples of a group would be the same, and equal rewards teach nothing"


@pytest.mark.parametrize(
    ("fields", "field", "why", "mend"),
    [
        (
            {"group_size": 1},
            "group_size = 1",
            "'grpo' compares the samples of a group, and one has nothing to compare with",
            "give at least 2",
        ),
        (
            {"sampling": Sampling(max_tokens=8, temperature=0.0)},
            "sampling.temperature = 0",
            EQUAL,
            "give a number above 0",
        ),
        (
            {"sampling": Sampling(max_tokens=8, top_k=1)},
            "sampling.top_k = 1",
            EQUAL,
            "give at least 2, or 0 to keep all tokens",
        ),
        (
            {"model": Section(kind="scratch", options={"config": {"n_positions": 8}})},
            "sampling.max_tokens = 8",
            "model.config.n_positions is 8, which the prompt and the completion share",
            "give at most 7, less what the longest prompt takes",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], field: str, why: str, mend: str) -> None:
    assert texts(job(**fields), given=("model",)) == [f"{field}: {why}; {mend}"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"steps": 0}, "steps = 0: is too small; give a whole number of at least 1"),
        ({"max_age": -1}, "max_age = -1: is too small; give a number of at least 0"),
        ({"slots": 0}, "slots = 0: is too small; give a whole number of at least 1"),
        (
            {"sampling": Sampling(max_tokens=0)},
            "sampling.max_tokens = 0: is too small; give a whole number of at least 1",
        ),
        (
            {"sampling": Sampling(max_tokens=8, top_p=1.5)},
            "sampling.top_p = 1.5: is too large; give a number above 0 and at most 1",
        ),
        (
            {"sampling": Sampling(max_tokens=8, stop=("",))},
            "sampling.stop[0] = '': is empty; give text of at least 1 characters",
        ),
    ],
)
def test_fields_of_a_job_built_in_code_are_checked_too(fields: dict[str, Any], text: str) -> None:
    """Constructors check nothing."""
    assert texts(job(**fields)) == [text]


@pytest.mark.parametrize(
    "fields",
    [
        {"slots": 1, "max_age": 0},
        {"group_size": 2, "batch_groups": 1, "slots": 1000},
        {"filter": {"equal_rewards": "keep", "ceiling": 0, "on_ceiling": "fail"}},
        {"remainder": "drop"},
        {"max_dropped": 0.0},
        {"lag_interval_s": 0.0},
        {"sampling": Sampling(max_tokens=1, top_k=2, top_p=1.0, temperature=9.0, stop=("a", "a"))},
    ],
)
def test_what_works_is_not_refused(fields: dict[str, Any]) -> None:
    """Fewer slots than a batch only make a step slower: what is accepted gives its slot back."""
    raw = msgspec.structs.asdict(job()) | fields
    assert texts(msgspec.convert(raw, RunConfig)) == []


def test_sections_that_are_missing_say_how_to_add_them() -> None:
    cfg = job(model=None, prompts=None, reward=None, engine=Section(kind="torch"))
    assert texts(cfg, given=("engine", "train", "episode")) == [
        f"{name}: is missing; add a section [{name}] with a kind: {', '.join(known_kinds(name))}, or module:name"
        for name in ("prompts", "reward")
    ]
    assert [text.split(":")[0] for text in texts(cfg, given=("train", "episode"))][:3] == ["model", "prompts", "reward"]


def test_adapters_of_ones_own_say_themselves_whether_they_need_a_model() -> None:
    assert texts(job(model=None)) == []


def test_an_unknown_adapter_is_named_with_the_nearest_known_one() -> None:
    assert texts(job(train=Section(kind="trch"))) == ["train.kind = 'trch': no such adapter; did you mean 'torch'?"]
    assert texts(job(trackers=(GOOD, Section(kind="jsnl")))) == [
        "trackers[1].kind = 'jsnl': no such adapter; did you mean 'jsonl'?"
    ]


def test_an_adapters_options_are_checked_like_the_jobs_own_fields() -> None:
    assert texts(job(train=Section(kind=f"{STUBS}:good", options={"rat": 1, "path": 3}))) == [
        "train.path = 3: is a whole number; give text",
        "train.rat = 1: unknown key; did you mean 'rate'?",
    ]


def test_what_is_no_adapter_is_refused() -> None:
    """It would fail with an AttributeError once the run has begun."""
    assert texts(job(engine=Section(kind=f"{STUBS}:hollow"))) == [
        f"engine.kind = '{STUBS}:hollow': it has no 'check'; name a module with Config, check and open"
    ]


def test_a_module_that_fails_while_it_is_imported_is_a_problem_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("1 / 0\n", encoding="utf-8")
    (text,) = texts(job(job_dir=str(tmp_path), engine=Section(kind="mine.py:engine")))
    assert text == (
        "engine.kind = 'mine.py:engine': it cannot be imported: ZeroDivisionError: division by zero;"
        " name it module:name, or path.py:name next to the job file"
    )


def test_what_a_check_finds_is_listed_once() -> None:
    assert texts(job(train=Section(kind=f"{STUBS}:repeats_itself"))) == ["train.path = 'x': is no good; find another"]


def test_one_broken_model_is_one_problem_however_many_adapters_notice() -> None:
    """Engine, trainer and episode all look at the model; a user made one mistake."""
    engine = Section(kind=f"{STUBS}:blames_the_model")
    assert texts(job(model=Section(kind=f"{STUBS}:bad_model"), engine=engine)) == [
        "model.path = 'x': is no good; find another",
        "engine.path = 'x': is no good; find another",
    ]
    assert texts(job(engine=engine))[0] == "model = 'x': cannot be loaded; find another"
    fields = msgspec.structs.asdict(job(engine=engine))
    del fields["model"]  # misspelt, say
    assert [problem.field for problem in find_problems_between(fields)] == ["engine.path"]


def test_problems_are_listed_fields_first_then_between_fields_then_section_by_section() -> None:
    cfg = job(
        seed=-1,
        group_size=1,
        model=Section(kind=f"{STUBS}:bad_model"),
        train=Section(kind=f"{STUBS}:bad"),
        trackers=(Section(kind="jsnl"),),
    )
    fields = [text.split(" = ")[0] for text in texts(cfg)]
    assert fields == ["seed", "group_size", "model.path", "train.path", "trackers[0].kind"]


def test_nothing_is_said_about_what_depends_on_a_field_that_is_not_known() -> None:
    fields = msgspec.structs.asdict(job(group_size=1))
    assert len(find_problems_between(fields)) == 1
    del fields["train"]
    assert find_problems_between(fields) == []


def test_dropping_every_prompt_of_every_epoch_is_refused_with_the_numbers() -> None:
    cfg = job(remainder="drop")
    assert find_remainder_problem(cfg, 4) is None
    assert find_remainder_problem(cfg, None) is None
    assert find_remainder_problem(job(remainder="carry"), 3) is None
    assert str(find_remainder_problem(cfg, 3)) == (
        "remainder = 'drop': an epoch has 3 prompts and a batch 4 groups, so nothing would ever be trained;"
        " set it to 'train' or 'carry', or batch_groups to at most 3"
    )


def test_a_folder_in_which_the_checkpoint_could_not_be_written_is_refused_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "used" / "checkpoints").mkdir(parents=True)
    (tmp_path / "file").write_text("", encoding="utf-8")
    mend = "name another folder"
    assert texts(job(job_dir=str(tmp_path), run_dir="used")) == [
        f"run_dir = 'used': it holds a run; go on with it (conductor resume FOLDER, run --resume), or {mend}"
    ]
    run_dir = str(tmp_path / "file" / "run")
    assert texts(job(run_dir=run_dir)) == [f"run_dir = '{run_dir}': {tmp_path / 'file'} is no folder; {mend}"]
    assert texts(job(job_dir=str(tmp_path), run_dir="new/er")) == []


def test_adapters_are_told_absolute_folders() -> None:
    cfg = job(job_dir="/jobs", run_dir="runs/a", seed=7, model=GOOD)
    site = site_of(cfg)
    assert (site.job_dir, site.run_dir, site.seed, site.model) == ("/jobs", "/jobs/runs/a", 7, GOOD)
    assert site_of(job(job_dir="/jobs", run_dir="/runs/a")).run_dir == "/runs/a"
    assert site_of(job()).run_dir is None
    find_problems(cfg)
    assert stub_adapters.good.check.sites[-1] == site


def test_a_trainer_is_asked_how_many_of_it_train_one_policy() -> None:
    sharded = Section(kind="torch", options={"sharding": "full_shard"})
    two = FleetConfig(roles={"policy": RoleConfig(instances=2)})
    (problem,) = texts(job(train=sharded))
    assert problem.startswith("train.sharding = 'full_shard': a single rank")
    assert texts(job(train=sharded, fleet=two)) == []
    (problem,) = texts(job(fleet=two))
    assert problem.startswith("fleet.roles.policy.instances = 2: several workers of the trainer")

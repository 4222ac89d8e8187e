"""From a job file to a configuration, or to every problem at once."""

from pathlib import Path
from typing import Any

import pytest

from conductor.config import RunConfig
from conductor.loading import load_config
from protocols.errors import ConfigError
from protocols.sections import Section

STUBS = "tests.unit.config.stub_adapters"
SECTIONS = ("model", "prompts", "reward", "episode", "engine", "train", "backend", "ledger")

TOML = (
    """
name = "demo"
steps = 3
batch_groups = 4
group_size = 2

[sampling]
max_tokens = 8
stop = ["x"]

[filter]
ceiling = 2
"""
    + "".join(f'\n[{name}]\nkind = "{STUBS}:good"\n' for name in SECTIONS)
    + f'\n[[trackers]]\nkind = "{STUBS}:good"\nrate = 0.5\n'
)

YAML = (
    """
name: demo
steps: 3
batch_groups: 4
group_size: 2
sampling: {max_tokens: 8, stop: [x]}
filter:
  ceiling: 2
"""
    + "".join(f"{name}: {STUBS}:good\n" for name in SECTIONS)
    + f"trackers:\n- kind: {STUBS}:good\n  rate: 0.5\n"
)


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str, name: str = "job.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems(path: Path, **arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, **arguments)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


def test_a_job_is_read_with_its_folder_and_a_new_folder_for_the_run(in_tmp: Path) -> None:
    cfg = load_config(write(in_tmp, TOML))
    assert (cfg.name, cfg.steps, cfg.sampling.stop, cfg.filter.ceiling) == ("demo", 3, ("x",), 2)
    assert cfg.trackers == (Section(kind=f"{STUBS}:good", options={"rate": 0.5}),)
    assert cfg.job_dir == str(in_tmp)
    assert cfg.run_dir is not None
    assert Path(cfg.run_dir).parent == in_tmp / "runs"
    assert Path(cfg.run_dir).name.startswith("demo-20")
    assert not Path(cfg.run_dir).exists()


def test_toml_and_yaml_say_the_same(in_tmp: Path) -> None:
    def load(text: str, name: str) -> RunConfig:
        return load_config(write(in_tmp, text, name), run_dir="out")

    assert load(TOML, "job.toml") == load(YAML, "job.yaml") == load(YAML, "job.yml")


def test_two_runs_in_one_second_get_two_folders(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conductor.loading._stamp", lambda: "20260102-030405")
    path = write(in_tmp, TOML)
    folders: list[str] = []
    for _ in range(3):
        run_dir = load_config(path).run_dir
        assert run_dir is not None
        Path(run_dir).mkdir(parents=True)
        folders.append(Path(run_dir).name)
    assert folders == ["demo-20260102-030405", "demo-20260102-030405-2", "demo-20260102-030405-3"]


def test_folders_start_from_the_job_or_on_the_command_line_from_where_one_stands(in_tmp: Path) -> None:
    (in_tmp / "jobs").mkdir()
    path = write(in_tmp / "jobs", 'run_dir = "out"\njob_dir = "data"\n' + TOML)
    assert load_config(path).job_dir == str(in_tmp / "jobs" / "data")
    assert load_config(path).run_dir == str(in_tmp / "jobs" / "data" / "out")
    assert load_config(path, run_dir="here").run_dir == str(in_tmp / "here")


def test_five_planted_mistakes_are_five_problems(in_tmp: Path) -> None:
    """A user who corrects five things wants one list, not five runs."""
    text = (
        TOML.replace("steps = 3", "stepz = 3")
        .replace("group_size = 2", "group_size = 1")
        .replace("max_tokens = 8", 'max_tokens = 8\ntemperature = "warm"')
        .replace(f'[train]\nkind = "{STUBS}:good"', f'[train]\nkind = "{STUBS}:good"\nrate = -1')
        .replace(f'[reward]\nkind = "{STUBS}:good"', '[reward]\nkind = "missing.py:reward"')
    )
    found = problems(write(in_tmp, text))
    assert [problem.split(" = ")[0] for problem in found] == [
        "sampling.temperature",
        "stepz",
        "group_size",
        "reward.kind",
        "train.rate",
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("steps=7", {"steps": 7}),
        ("max_dropped = 1e-3", {"max_dropped": 1e-3}),
        ("name=other", {"name": "other"}),
        ('name="other"', {"name": "other"}),
        ("train.rate=0.25", {"train": Section(kind=f"{STUBS}:good", options={"rate": 0.25})}),
        ("engine=vllm", {"engine": Section(kind="vllm")}),
        ('trackers=["jsonl"]', {"trackers": (Section(kind="jsonl"),)}),
        ("filter.on_ceiling=fail", {"filter.on_ceiling": "fail"}),
    ],
)
@pytest.mark.parametrize(("text", "name"), [(TOML, "job.toml"), (YAML, "job.yaml")])
def test_overrides_are_laid_over_the_file(
    in_tmp: Path, text: str, name: str, override: str, expected: dict[str, Any]
) -> None:
    cfg: Any = load_config(write(in_tmp, text, name), overrides=[override], given=("engine", "train", "trackers"))
    for field, value in expected.items():
        found = cfg
        for part in field.split("."):
            found = getattr(found, part)
        assert found == value


def test_the_last_of_two_overrides_wins(in_tmp: Path) -> None:
    assert load_config(write(in_tmp, TOML), overrides=["steps=7", "steps=9"]).steps == 9


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("steps", "--set = 'steps': is no 'name=value'; write --set train.lr=1e-3"),
        (".steps=1", "--set = '.steps=1': is no 'name=value'; write --set train.lr=1e-3"),
        ("steps.x=1", "--set = 'steps.x=1': 'steps' is a whole number, not a table; set it whole"),
        ("stops=3", "stops = 3: unknown key; did you mean 'steps'?"),
        ("filter.q=1", "filter.q = 1: unknown key; known are equal_rewards, ceiling, on_ceiling"),
        ("train.rat=1", "train.rat = 1: unknown key; did you mean 'rate'?"),
        ("filter.ceilin=1", "filter.ceilin = 1: unknown key; did you mean 'ceiling'?"),
        ("steps=many", "steps = 'many': is text; give a whole number of at least 1"),
        ("steps=1\nseed=2", "steps = '1\\nseed=2': is text; give a whole number of at least 1"),
    ],
)
def test_a_wrong_override_is_a_problem_like_any_other(in_tmp: Path, override: str, text: str) -> None:
    (found,) = problems(write(in_tmp, TOML), overrides=[override])
    assert found.startswith(text)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "job.toml",
            "steps = 1\nx = [1,\ny = 2",
            "cannot be understood: Invalid value (at line 3, column 1); correct it there",
        ),
        ("job.yaml", "steps: [1,\nb: }", "cannot be understood: while parsing a flow"),
        ("job.ini", "{}", "is neither TOML nor YAML by its name; name a file that ends in .toml, .yaml, .yml or .json"),
        ("job.json", "{", "cannot be understood: Input data was truncated; correct it there"),
        ("job.yaml", "- steps", "is a list; give a table of fields"),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_why(in_tmp: Path, name: str, text: str, problem: str) -> None:
    path = write(in_tmp, text, name)
    (found,) = problems(path)
    assert found.startswith(f"job = '{path}': {problem}")


def test_a_file_that_is_not_there_says_so(in_tmp: Path) -> None:
    assert problems(Path("none.toml")) == ["job = 'none.toml': there is no such file; check the path"]
    (in_tmp / "folder.toml").mkdir()
    assert problems(Path("folder.toml")) == [
        "job = 'folder.toml': cannot be read: Is a directory; name a file that you may read"
    ]
    (in_tmp / "latin.toml").write_bytes(b'name = "\xff"')
    (found,) = problems(Path("latin.toml"))
    assert found.startswith("job = 'latin.toml': cannot be understood: 'utf-8' codec can't decode byte 0xff")


def test_an_empty_file_lacks_what_every_job_needs(in_tmp: Path) -> None:
    for name in ("job.toml", "job.yaml"):
        found = problems(write(in_tmp, "", name), given=("episode", "engine", "train", "backend", "ledger", "trackers"))
        fields = [problem.split(":")[0] for problem in found]
        assert fields == ["steps", "batch_groups", "group_size", "sampling", "prompts", "reward"]

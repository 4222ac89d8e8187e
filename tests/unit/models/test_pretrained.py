"""A model from a folder."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from backends.models import pretrained
from backends.models.loading import load_module
from backends.models.opening import load_tokenizer
from protocols.adapters import known_kinds
from protocols.errors import UserError
from protocols.prompts import TextPrompt
from protocols.sections import Section, Site
from tests.support.batches import GPT2, site
from tests.support.texts import exactly


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds a model with its tokenizer."""
    folder = tmp_path / "model"
    load_module(site()).save_pretrained(folder)
    load_tokenizer(site()).save(folder)
    return folder


def at(path: str, job_dir: Path) -> Site:
    return Site(job_dir=str(job_dir), model=Section(kind="pretrained", options={"path": path}))


def problems(path: str, job_dir: Path) -> list[str]:
    return [str(one) for one in pretrained.check(pretrained.Config(path=path), Site(job_dir=str(job_dir)))]


@pytest.mark.parametrize("relative", [True, False])
def test_a_saved_model_comes_back(folder: Path, relative: bool) -> None:
    path = "model" if relative else str(folder)
    assert problems(path, folder.parent) == []
    where = at(path, folder.parent)
    saved, loaded = load_module(site()), load_module(where)
    assert not loaded.training
    for name, parameter in saved.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name))
    tokenizer = load_tokenizer(where)
    assert tokenizer.encode(TextPrompt(text="1+2")) == load_tokenizer(site()).encode(TextPrompt(text="1+2"))
    assert tokenizer.stop_token_ids == (GPT2.options["vocabulary"].index("."),)


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_remove("config.json"), "config.json cannot be read"),
        (_remove("tokenizer.json"), "no tokenizer"),
        (_remove("model.safetensors"), "no weights"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("{}"), "no model_type"),
    ],
)
def test_a_folder_that_lacks_something_is_a_problem(folder: Path, spoil: Callable[[Path], None], says: str) -> None:
    spoil(folder)
    [problem] = problems("./model", folder.parent)
    assert problem.startswith("model.path = './model'")
    assert says in problem


def test_a_folder_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    [problem] = problems("./nowhere", tmp_path)
    assert f"there is no folder {tmp_path}/nowhere" in problem
    assert problems("a/b/c", tmp_path), "three parts are no Hugging Face name"


def test_a_name_that_cannot_be_one_is_a_problem(tmp_path: Path) -> None:
    [problem] = problems("no such name!", tmp_path)
    assert "neither a folder nor a Hugging Face name" in problem


def test_weights_that_cannot_be_read_are_the_users_error(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(UserError, match=exactly("model.path = 'model': the model cannot be loaded: ...")):
        load_module(at("model", folder.parent))


def test_models_that_ship_are_known() -> None:
    """Modules beside adapters are no kinds."""
    assert known_kinds("model") == ("pretrained", "scratch")
    assert known_kinds("engine") == ("sglang", "torch", "vllm")

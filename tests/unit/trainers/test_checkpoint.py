"""A checkpoint continues bit for bit, is a model for transformers, and a bad one is named for what it is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from backends.models.loading import load_module
from backends.trainers.torch import Config, checkpoint
from backends.trainers.torch.learner import Learner
from protocols.errors import UserError
from protocols.sections import Section
from tests.support.batches import GPT2, LLAMA, make_batch, site

MODELS = [pytest.param(GPT2, id="gpt2"), pytest.param(LLAMA, id="llama")]


def _learner(model: Section = GPT2, **config: Any) -> Learner:
    options = model.options | {"config": model.options["config"] | config}
    module = load_module(site(Section(kind="scratch", options=options)))
    return Learner(module, Config(lr=1e-2), interrupt=lambda: None)


def _step(learner: Learner) -> None:
    batch = make_batch(dispatch=learner.version, version=learner.version)
    learner.train_step(batch.lease, batch.payloads)


def _equal(one: Any, other: Any) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("steps", [0, 3])
def test_a_loaded_learner_continues_bit_for_bit(model: Section, steps: int, tmp_path: Path) -> None:
    learner = _learner(model)
    for _ in range(steps):
        _step(learner)
    checkpoint.save(learner, tmp_path)
    loaded = _learner(model)
    _step(loaded)
    checkpoint.load(loaded, tmp_path)
    assert loaded.version == steps
    assert loaded.outcome(make_batch().lease.dispatch_id) is None
    assert _equal(learner.module, loaded.module)
    for file in tmp_path.iterdir():  # what was read may lie in the file still
        with file.open("r+b") as opened:
            opened.write(bytes(file.stat().st_size))
    for _ in range(2):
        _step(learner)
        _step(loaded)
    assert _equal(learner.module, loaded.module)


@pytest.mark.parametrize("model", MODELS)
def test_transformers_loads_the_folder(model: Section, tmp_path: Path) -> None:
    learner = _learner(model)
    _step(learner)
    checkpoint.save(learner, tmp_path)
    assert _equal(learner.module, AutoModelForCausalLM.from_pretrained(tmp_path))


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    learner = _learner(LLAMA)
    _step(learner)
    checkpoint.save(learner, tmp_path)
    checkpoint.load(learner, tmp_path)
    assert learner.module.lm_head.weight is learner.module.model.embed_tokens.weight


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "optimizer.safetensors"])
def test_what_is_missing_is_named(name: str, tmp_path: Path) -> None:
    learner = _learner()
    checkpoint.save(learner, tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=name):
        checkpoint.load(learner, tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("size", [0, 7, 200])
def test_half_a_file_is_the_users_error_and_changes_nothing(name: str, size: int, tmp_path: Path) -> None:
    """I49: a half-written checkpoint was chosen and loaded."""
    learner = _learner()
    _step(learner)
    checkpoint.save(learner, tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:size])
    other = _learner()
    fresh = _learner()
    with pytest.raises(UserError, match=str(tmp_path)):
        checkpoint.load(other, tmp_path)
    assert other.version == 0
    assert _equal(other.module, fresh.module)


@pytest.mark.parametrize(
    ("config", "named"),
    [({"n_embd": 32}, "transformer.wte.weight"), ({"n_layer": 2}, "transformer.h.1"), ({"n_positions": 32}, "wpe")],
)
def test_a_folder_of_another_model_is_refused(config: dict[str, Any], named: str, tmp_path: Path) -> None:
    other = _learner(**config)
    _step(other)
    checkpoint.save(other, tmp_path)
    learner = _learner()
    before = load_module(site())
    with pytest.raises(UserError, match=named):
        checkpoint.load(learner, tmp_path)
    assert _equal(learner.module, before)


def test_an_optimizer_of_another_model_is_refused(tmp_path: Path) -> None:
    other = _learner(n_embd=32)
    _step(other)
    checkpoint.save(other, tmp_path)
    wrong = (tmp_path / "optimizer.safetensors").read_bytes()
    learner = _learner()
    checkpoint.save(learner, tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(wrong)
    with pytest.raises(UserError, match="another model"):
        checkpoint.load(learner, tmp_path)

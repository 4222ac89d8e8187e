"""A checkpoint continues bit for bit, is a model for others, and a bad one is named for what it is."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from backends.models.loading import load_module, named_weights
from backends.trainers.torch import Config, checkpoint
from backends.trainers.torch.learner import Learner
from backends.trainers.torch.models import load_models
from protocols.errors import UserError
from protocols.sections import Section
from tests.support.batches import GPT2, LLAMA, Drawn, Group, make_batch, site
from tests.support.lora import needs_peft, with_lora
from tests.support.texts import exactly

FULL = [pytest.param(GPT2, id="gpt2"), pytest.param(LLAMA, id="llama")]
ADAPTED = [
    pytest.param(with_lora(GPT2), id="gpt2-lora", marks=needs_peft),
    pytest.param(with_lora(LLAMA, rank=2, targets=["q_proj", "v_proj"]), id="llama-lora", marks=needs_peft),
]
MODEL_FILES = ["config.json", "model.safetensors", "optimizer.safetensors", "random.safetensors"]
ADAPTER_FILES = ["adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "random.safetensors"]
IDS = torch.arange(12)[None]
GROUPS = [
    Group((1, 2, 3), [Drawn((3, 2, 1, 11), 1.0, reward=1.0), Drawn((4, 11), -1.0)]),
    Group((7,), [Drawn((8, 9, 11), 2.0, reward=0.5), Drawn((7, 7), -0.5)]),
]
reading_with_peft = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's own


def _learner(model: Section = GPT2, cfg: Config | None = None) -> Learner:
    cfg = cfg or Config(lr=1e-2)
    return Learner(load_models(site(model), cfg), cfg, site=site(model), interrupt=lambda: None)


def _resized(**config: Any) -> Section:
    return Section(kind="scratch", options=GPT2.options | {"config": GPT2.options["config"] | config})


def _plain(model: Section) -> Any:
    """Build what a model with adapters was made from."""
    return load_module(site(Section(kind="scratch", options=model.options | {"lora": None})))


def _draw() -> tuple[Any, ...]:
    """Draw from each of the global generators; the second of two normal numbers is one that was remembered."""
    numbers = (random.random(), random.gauss(), *np.random.random(3), np.random.normal())  # noqa: NPY002
    return (*numbers, *torch.rand(3).tolist(), torch.randn(()).item())


def _step(learner: Learner) -> None:
    batch = make_batch(GROUPS, dispatch=learner.version, version=learner.version)
    learner.train_step(batch.lease, batch.payloads)


def _save(learner: Learner, folder: Path) -> None:
    checkpoint.write(checkpoint.state_of(learner), folder)


def _content(file: Path) -> Any:
    """Return the bytes of a file; of one with many words in its head, whose order there is random, what they say."""
    if file.name != "random.safetensors":
        return file.read_bytes()
    with safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name).tolist() for name in opened.keys()}  # noqa: SIM118 - no mapping
        return opened.metadata(), tensors


def _equal(one: Any, other: Any) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("model", [*FULL, *ADAPTED])
def test_three_steps_and_three_more_after_loading_are_six(model: Section, tmp_path: Path) -> None:
    """A run that was resumed must not differ from one that was not, by a bit."""
    whole, first, second = _learner(model), _learner(model), _learner(model)
    for _ in range(6):
        _step(whole)
    for _ in range(3):
        _step(first)
    _save(first, tmp_path)
    checkpoint.load(second, tmp_path)
    for _ in range(3):
        _step(second)
    assert second.version == whole.version == 6
    assert _equal(second.module, whole.module)
    assert not _equal(second.module, first.module)


@pytest.mark.parametrize("model", [*FULL, *ADAPTED])
@pytest.mark.parametrize("steps", [0, 3])
def test_what_a_learner_did_before_loading_does_not_matter(model: Section, steps: int, tmp_path: Path) -> None:
    learner = _learner(model)
    for _ in range(steps):
        _step(learner)
    _save(learner, tmp_path)
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


@pytest.mark.parametrize("cfg", [Config(lr=1e-2), Config(lr=1e-2, algorithm="ppo")], ids=["policy", "critic"])
@pytest.mark.parametrize("model", [*FULL, *ADAPTED])
def test_a_copy_is_what_would_have_been_written_then(model: Section, cfg: Config, tmp_path: Path) -> None:
    """Steps go on while a checkpoint is written: not a bit of them may be in it, and tied weights are written once."""
    learner = _learner(model, cfg)
    _step(learner)
    at_once, later = tmp_path / "at once", tmp_path / "later"
    for folder in (at_once, later):
        folder.mkdir()
    copy = checkpoint.copy_of(learner)
    _save(learner, at_once)
    _step(learner)
    _draw()
    checkpoint.write(copy, later)
    files = [path.relative_to(at_once) for path in sorted(at_once.rglob("*")) if path.is_file()]
    assert files == [path.relative_to(later) for path in sorted(later.rglob("*")) if path.is_file()]
    for file in files:
        assert _content(at_once / file) == _content(later / file), file


@pytest.mark.parametrize("model", FULL)
def test_transformers_loads_the_folder(model: Section, tmp_path: Path) -> None:
    learner = _learner(model)
    _step(learner)
    _save(learner, tmp_path)
    assert _equal(learner.module, AutoModelForCausalLM.from_pretrained(tmp_path))


@reading_with_peft
@pytest.mark.parametrize("model", ADAPTED)
def test_peft_loads_the_folder(model: Section, tmp_path: Path) -> None:
    """What was trained is of use without us."""
    from peft import PeftModel  # noqa: PLC0415 - optional

    learner = _learner(model)
    for _ in range(3):
        _step(learner)
    _save(learner, tmp_path)
    plain = _plain(model)
    before = plain(input_ids=IDS).logits
    loaded = PeftModel.from_pretrained(plain, str(tmp_path))
    assert torch.equal(loaded(input_ids=IDS).logits, learner.module(input_ids=IDS).logits)
    assert not torch.equal(loaded(input_ids=IDS).logits, before)


@reading_with_peft
@pytest.mark.parametrize("model", ADAPTED)
def test_merged_adapters_are_a_model(model: Section, tmp_path: Path) -> None:
    """As docs/models.md says: for engines that know no adapters, and as the start of another run."""
    from peft import PeftModel  # noqa: PLC0415 - optional

    learner = _learner(model)
    _step(learner)
    _save(learner, tmp_path / "adapters")
    PeftModel.from_pretrained(_plain(model), str(tmp_path / "adapters")).merge_and_unload().save_pretrained(
        tmp_path / "merged"
    )
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.allclose(merged(input_ids=IDS).logits, learner.module(input_ids=IDS).logits, atol=1e-5)


@pytest.mark.parametrize("model", ADAPTED)
def test_adapters_alone_are_written(model: Section, tmp_path: Path) -> None:
    learner = _learner(model)
    _step(learner)
    _save(learner, tmp_path)
    assert "model.safetensors" not in {file.name for file in tmp_path.iterdir()}
    trained = named_weights(learner.module)
    assert len(load_file(tmp_path / "adapter_model.safetensors")) == len(trained)
    moments = load_file(tmp_path / "optimizer.safetensors")
    assert {key.rpartition("/")[0] for key in moments} == trained.keys()


@needs_peft
@pytest.mark.parametrize(
    ("lora", "named"),
    [
        ({"alpha": 32}, "job: its adapters have lora_alpha = 16, and the job's 32"),
        ({"rank": 4}, "job: its adapters have r = 8, and the job's 4"),
        ({"targets": ["q_proj"]}, "model: base_model.model.model.layers.0.mlp.down_proj.lora_A.weight, ... more"),
    ],
)
def test_adapters_that_the_job_does_not_describe_are_refused(lora: dict[str, Any], named: str, tmp_path: Path) -> None:
    """The same matrices with another alpha are another model, and nothing else would show it."""
    trained = _learner(with_lora(LLAMA))
    _step(trained)
    _save(trained, tmp_path)
    learner = _learner(with_lora(LLAMA, **lora))
    before = {name: weight.clone() for name, weight in named_weights(learner.module).items()}
    text = f"{tmp_path} is of another {named}; load it with the job that wrote it"
    with pytest.raises(UserError, match=exactly(text)):
        checkpoint.load(learner, tmp_path)
    assert all(torch.equal(weight, before[name]) for name, weight in named_weights(learner.module).items())


def test_random_numbers_go_on_as_well(tmp_path: Path) -> None:
    """User code that draws from the global generators must not draw the same again after a resume."""
    learner = _learner()
    _draw()
    _save(learner, tmp_path)
    drawn = _draw()
    assert _draw() != drawn
    checkpoint.load(learner, tmp_path)
    assert _draw() == drawn


def test_a_folder_that_is_refused_leaves_random_numbers_alone(tmp_path: Path) -> None:
    other = _learner(_resized(n_layer=2))
    _save(other, tmp_path)
    learner = _learner()
    states = torch.get_rng_state(), random.getstate()
    with pytest.raises(UserError):
        checkpoint.load(learner, tmp_path)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


@pytest.mark.parametrize(
    ("name", "text"), [("python", "[3, [1, 2], null]"), ("numpy", "{}"), ("numpy", "[1"), ("python", "null")]
)
def test_a_random_state_that_is_none_is_the_users_error(name: str, text: str, tmp_path: Path) -> None:
    learner = _learner()
    _step(learner)
    _save(learner, tmp_path)
    file = tmp_path / "random.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"][name] = text
    spoilt = json.dumps(header).encode()
    file.write_bytes(len(spoilt).to_bytes(8, "little") + spoilt + content[8 + size :])
    fresh = _learner()
    text = f"{tmp_path} cannot be read: ...; restore it, or go on from another checkpoint"
    with pytest.raises(UserError, match=exactly(text)):
        checkpoint.load(fresh, tmp_path)
    assert fresh.version == 0
    assert _equal(fresh.module, _learner().module)


@pytest.mark.parametrize("model", [*FULL, *ADAPTED])
def test_a_critic_goes_on_as_well(model: Section, tmp_path: Path) -> None:
    """One that starts anew spoils the advantages of the first steps after a resume."""
    cfg = Config(algorithm="ppo", lr=1e-2, epochs=2)
    whole, first, second = (_learner(model, cfg) for _ in range(3))
    for _ in range(4):
        _step(whole)
    for _ in range(2):
        _step(first)
    _save(first, tmp_path)
    checkpoint.load(second, tmp_path)
    for _ in range(2):
        _step(second)
    for name in ("policy", "critic"):
        assert _equal(second.steppers[name].module, whole.steppers[name].module)
        assert not _equal(second.steppers[name].module, first.steppers[name].module)


@pytest.mark.parametrize("name", ["critic/model.safetensors", "critic/optimizer.safetensors"])
def test_a_critic_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    learner = _learner(cfg=Config(algorithm="ppo"))
    _save(learner, tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=exactly(incomplete(tmp_path, name))):
        checkpoint.load(learner, tmp_path)


def incomplete(folder: Path, name: str) -> str:
    return f"{folder} is no complete checkpoint: {name} is missing; restore it, or go on from another checkpoint"


def test_parts_of_two_checkpoints_are_none(tmp_path: Path) -> None:
    learner = _learner(cfg=Config(algorithm="ppo"))
    for folder in (tmp_path / "one", tmp_path / "two"):
        _step(learner)
        folder.mkdir()
        _save(learner, folder)
    older = (tmp_path / "one" / "critic" / "optimizer.safetensors").read_bytes()
    (tmp_path / "two" / "critic" / "optimizer.safetensors").write_bytes(older)
    why = "is put together from checkpoints of different versions; restore it, or go on from another checkpoint"
    with pytest.raises(UserError, match=exactly(f"{tmp_path / 'two'} {why}")):
        checkpoint.load(learner, tmp_path / "two")


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    learner = _learner(LLAMA)
    _step(learner)
    _save(learner, tmp_path)
    checkpoint.load(learner, tmp_path)
    assert learner.module.lm_head.weight is learner.module.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *((GPT2, name) for name in MODEL_FILES),
        *(pytest.param(with_lora(GPT2), name, marks=needs_peft) for name in ADAPTER_FILES),
    ],
)
def test_what_is_missing_is_named(model: Section, name: str, tmp_path: Path) -> None:
    learner = _learner(model)
    _save(learner, tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=exactly(incomplete(tmp_path, name))):
        checkpoint.load(learner, tmp_path)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *((GPT2, name) for name in MODEL_FILES[1:]),
        *(pytest.param(with_lora(GPT2), name, marks=needs_peft) for name in ADAPTER_FILES),
    ],
)
@pytest.mark.parametrize("size", [0, 7, 200])
def test_half_a_file_is_the_users_error_and_changes_nothing(
    model: Section, name: str, size: int, tmp_path: Path
) -> None:
    """I49: a half-written checkpoint was chosen and loaded."""
    learner = _learner(model)
    _step(learner)
    _save(learner, tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:size])
    other = _learner(model)
    fresh = _learner(model)
    with pytest.raises(UserError, match=str(tmp_path)):
        checkpoint.load(other, tmp_path)
    assert other.version == 0
    assert _equal(other.module, fresh.module)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"n_embd": 32}, "mismatched: transformer.h.0.attn.c_attn.bias [96] not [48], ... more"),
        ({"n_layer": 2}, "unexpected: transformer.h.1.attn.c_attn.weight, ... more"),
        ({"n_positions": 32}, "mismatched: transformer.wpe.weight [32, 16] not [64, 16]"),
    ],
)
def test_a_folder_of_another_model_is_refused(config: dict[str, Any], named: str, tmp_path: Path) -> None:
    other = _learner(_resized(**config))
    _step(other)
    _save(other, tmp_path)
    learner = _learner()
    before = load_module(site())
    text = f"{tmp_path} is of another model: {named}; load it with the job that wrote it"
    with pytest.raises(UserError, match=exactly(text)):
        checkpoint.load(learner, tmp_path)
    assert _equal(learner.module, before)


def test_an_optimizer_of_another_model_is_refused(tmp_path: Path) -> None:
    other = _learner(_resized(n_embd=32))
    _step(other)
    _save(other, tmp_path)
    wrong = (tmp_path / "optimizer.safetensors").read_bytes()
    learner = _learner()
    _save(learner, tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(wrong)
    why = "the optimizer's transformer.h.0.attn.c_attn.bias/exp_avg has the shape [96]"
    text = f"{tmp_path} is of another model: {why}; load it with the job that wrote it"
    with pytest.raises(UserError, match=exactly(text)):
        checkpoint.load(learner, tmp_path)

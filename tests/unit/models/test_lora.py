"""Adapters as a part of the model."""

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.models import pretrained, scratch
from backends.models.loading import load_module, named_weights
from backends.models.lora import has_adapters, without_adapters
from backends.models.opening import load_tokenizer
from conductor.decoding import decode
from protocols.errors import ConfigError, InvariantError
from protocols.sections import Section, Site
from tests.support.batches import GPT2, LLAMA, site
from tests.support.lora import needs_peft, stir, with_lora

MODELS = pytest.mark.parametrize("model", [pytest.param(GPT2, id="gpt2"), pytest.param(LLAMA, id="llama")])
IDS = torch.arange(12)[None]


def problems(model: Section, job_dir: str = "/") -> list[str]:
    adapter: Any = {"scratch": scratch, "pretrained": pretrained}[model.kind]
    options, wrong = decode(adapter.Config, model.options, "model")
    found = wrong if options is None else adapter.check(options, Site(job_dir=job_dir))
    return [str(problem) for problem in found]


def saved(folder: Path, **lora: Any) -> Section:
    """Save a model with its tokenizer and ask for it with adapters."""
    load_module(site(LLAMA)).save_pretrained(folder)
    load_tokenizer(site(LLAMA)).save(folder)
    return with_lora(Section(kind="pretrained", options={"path": str(folder)}), **lora)


@needs_peft
@MODELS
def test_adapters_follow_from_the_seed_alone(model: Section) -> None:
    """Engine and trainer build them apart, in one process, each in a thread of its own."""
    before = torch.get_rng_state()
    first = named_weights(load_module(site(with_lora(model))))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(11)
    again = named_weights(load_module(site(with_lora(model))))
    other = named_weights(load_module(Site(job_dir="/", seed=4, model=with_lora(model))))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@needs_peft
@MODELS
def test_fresh_adapters_change_neither_the_model_nor_how_it_is_called(model: Section) -> None:
    plain, adapted = load_module(site(model)), load_module(site(with_lora(model)))
    assert type(adapted) is type(plain)
    assert inspect.signature(adapted.forward) == inspect.signature(plain.forward)
    assert not adapted.training
    assert torch.equal(adapted(input_ids=IDS).logits, plain(input_ids=IDS).logits)
    assert has_adapters(adapted)
    assert not has_adapters(plain)


@needs_peft
@MODELS
def test_adapters_alone_are_trained_and_published(model: Section) -> None:
    module = load_module(site(with_lora(model, rank=2)))
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    weights = named_weights(module)
    assert weights.keys() == trained
    assert all(".lora_" in name for name in trained)
    assert all(2 in weight.shape for weight in weights.values())
    head = module.get_output_embeddings()
    assert head is not None
    assert not head.weight.requires_grad


@needs_peft
def test_targets_are_names_or_the_ends_of_dotted_names() -> None:
    lora = {"targets": ["q_proj", "layers.1.mlp.up_proj"], "rank": 4, "alpha": 2}
    names = named_weights(load_module(site(with_lora(LLAMA, **lora))))
    layers = {name.removeprefix("model.layers.").partition(".lora_")[0] for name in names}
    assert layers == {"0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.up_proj"}


@needs_peft
def test_a_product_counts_alpha_over_rank_times() -> None:
    for alpha in (2, 5):
        module = load_module(site(with_lora(LLAMA, rank=2, alpha=alpha, targets=["layers.1.mlp.down_proj"])))
        stir(module)
        part = module.model.layers[1].mlp.down_proj
        given = torch.randn(5, part.in_features, generator=torch.Generator().manual_seed(1))
        first, second = (pair["default"].weight for pair in (part.lora_A, part.lora_B))
        expected = part.base_layer(given) + alpha / 2 * given @ first.T @ second.T
        assert torch.allclose(part(given), expected, atol=1e-5)


@needs_peft
@MODELS
def test_without_adapters_it_is_the_model_it_was_made_from(model: Section) -> None:
    """The reference of a KL penalty: an own copy would cost the model's memory once more."""
    plain, module = load_module(site(model)), load_module(site(with_lora(model)))
    stir(module)
    trained = module(input_ids=IDS).logits
    with without_adapters(module):
        assert torch.equal(module(input_ids=IDS).logits, plain(input_ids=IDS).logits)
    with pytest.raises(IndexError), without_adapters(module):
        module(input_ids=IDS + 10**6)
    assert torch.equal(module(input_ids=IDS).logits, trained)
    assert not torch.equal(plain(input_ids=IDS).logits, trained)


@needs_peft
def test_a_pass_without_adapters_takes_nothing_from_gradients() -> None:
    """The reference is asked between the policy's forward and backward pass."""
    module = load_module(site(with_lora(LLAMA)))
    stir(module)

    def gradients(between: Any) -> dict[str, torch.Tensor]:
        module.zero_grad()
        loss = module(input_ids=IDS).logits.square().mean()
        between()
        loss.backward()
        return {name: one.grad.clone() for name, one in module.named_parameters() if one.grad is not None}

    def ask() -> None:
        with without_adapters(module), torch.no_grad():
            module(input_ids=IDS)

    alone, around = gradients(lambda: None), gradients(ask)
    assert alone.keys() == named_weights(module).keys() == around.keys()
    assert all(torch.equal(alone[name], around[name]) for name in alone)


def test_a_model_without_adapters_is_not_its_own_reference() -> None:
    """Its KL would be 0 whatever it learns."""
    with pytest.raises(InvariantError, match="no adapters"), without_adapters(load_module(site())):
        pass


@MODELS
def test_a_target_that_is_no_layer_is_a_problem_with_the_names_there_are(model: Section) -> None:
    """peft takes a list of which one name fits, and leaves the misspelt ones without a word."""
    names = {"gpt2": "c_attn, c_fc, c_proj", "llama": "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"}
    known = names[model.options["architecture"]]
    first = known.split(", ")[0]
    found = [one for one in problems(with_lora(model, targets=["qproj", first, "lm_head"])) if "peft" not in one]
    assert [one.partition(":")[0] for one in found] == [
        "model.lora.targets = 'qproj'",
        "model.lora.targets = 'lm_head'",
    ]
    assert all(f"the model has {known}" in one for one in found)


def test_targets_in_a_folder_are_checked(tmp_path: Path) -> None:
    found = [one for one in problems(saved(tmp_path, targets=["c_attn"])) if "peft" not in one]
    assert len(found) == 1
    assert found[0].startswith("model.lora.targets = 'c_attn'")


@pytest.mark.parametrize(
    ("lora", "field"),
    [
        ({"rank": 0}, "model.lora.rank"),
        ({"alpha": 0}, "model.lora.alpha"),
        ({"targets": []}, "model.lora.targets"),
        ({"dropout": 0.1}, "model.lora.dropout"),
    ],
)
def test_values_that_make_no_sense_are_problems(lora: dict[str, Any], field: str) -> None:
    """Dropout: the trainer would train another policy than the one that was sampled."""
    [problem] = problems(with_lora(LLAMA, **lora))
    assert problem.startswith(field)


@needs_peft
def test_a_good_description_has_no_problems(tmp_path: Path) -> None:
    assert problems(with_lora(GPT2)) == []
    assert problems(with_lora(LLAMA, rank=1, alpha=1, targets=["q_proj", "self_attn.v_proj"])) == []
    assert problems(saved(tmp_path, targets=["v_proj"])) == []
    assert problems(Section(kind="scratch", options=LLAMA.options)) == []


@needs_peft
def test_a_pretrained_model_gets_adapters(tmp_path: Path) -> None:
    module = load_module(site(saved(tmp_path, targets=["v_proj"])))
    assert torch.equal(module(input_ids=IDS).logits, load_module(site(LLAMA))(input_ids=IDS).logits)
    assert all(".v_proj.lora_" in name for name in named_weights(module))
    assert module.peft_config["default"].base_model_name_or_path == str(tmp_path)


@needs_peft
def test_what_was_not_checked_is_refused_when_it_is_loaded() -> None:
    """A Hugging Face name that was never downloaded cannot be checked before."""
    with pytest.raises(ConfigError, match=r"model\.lora\.targets = 'qproj'"):
        load_module(site(with_lora(LLAMA, targets=["qproj", "v_proj"])))


def test_a_folder_of_adapters_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    [problem] = problems(Section(kind="pretrained", options={"path": str(tmp_path)}))
    assert "it holds adapters alone; name their model, or merge them" in problem


def test_peft_that_is_missing_is_a_problem_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)  # looked for, and not found
    line = "model.lora: it needs the module 'peft'; pip install 'conductor-rl[lora]'"
    assert problems(with_lora(LLAMA)) == [line]
    assert problems(saved(tmp_path)) == [line]
    with pytest.raises(ConfigError, match="it needs the module 'peft'"):
        load_module(site(with_lora(LLAMA)))

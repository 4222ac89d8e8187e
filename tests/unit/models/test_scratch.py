"""A decoder described in the job."""

from typing import Any

import pytest
import torch

from backends.models import scratch
from backends.models.loading import load_module
from backends.models.opening import load_tokenizer
from protocols.errors import UserError
from protocols.sections import Section, Site
from tests.support.batches import GPT2, LLAMA
from tests.support.texts import exactly

GOOD: dict[str, Any] = GPT2.options
MODELS = pytest.mark.parametrize("model", [pytest.param(GPT2, id="gpt2"), pytest.param(LLAMA, id="llama")])


def site(model: Section | None, seed: int = 0) -> Site:
    return Site(job_dir="/", seed=seed, model=model)


def fields(**changes: Any) -> list[str]:
    cfg = scratch.Config(**{**GOOD, **changes})
    return [problem.field for problem in scratch.check(cfg, site(None))]


@MODELS
def test_weights_follow_from_the_seed_alone(model: Section) -> None:
    torch.manual_seed(1)
    first = load_module(site(model, seed=5)).state_dict()
    torch.manual_seed(2)
    again = load_module(site(model, seed=5)).state_dict()
    other = load_module(site(model, seed=6)).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@MODELS
def test_the_global_random_state_stays_as_it_was(model: Section) -> None:
    """Trainer, engine and user code share it."""
    before = torch.get_rng_state()
    load_module(site(model))
    assert torch.equal(before, torch.get_rng_state())


@MODELS
def test_a_model_is_ready_to_compute(model: Section) -> None:
    module = load_module(site(model))
    assert not module.training
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert not any(part.p for part in module.modules() if isinstance(part, torch.nn.Dropout))
    assert module.get_input_embeddings().padding_idx is None, "a padding token would never learn"
    assert load_tokenizer(site(model)).stop_token_ids == (module.config.eos_token_id,)


def test_dropout_that_is_asked_for_stays() -> None:
    config = {**GOOD["config"], "resid_pdrop": 0.25}
    module = load_module(site(Section(kind="scratch", options={**GOOD, "config": config})))
    assert module.config.resid_pdrop == 0.25
    assert module.config.attn_pdrop == 0.0


def test_a_good_description_has_no_problems() -> None:
    assert fields() == []
    assert fields(end=None) == []


def test_every_mistake_is_a_problem_of_its_own() -> None:
    assert fields(vocabulary="0011", end="x", config={"n_layers": 1, "n_heads": 2}) == [
        "model.vocabulary",
        "model.end",
        "model.config.n_heads",
        "model.config.n_layers",
    ]


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"architecture": "gtp2"}, "model.architecture", "did you mean 'gpt2'"),
        ({"architecture": "bert-like"}, "model.architecture", "no causal language model"),
        ({"config": {"n_layers": 1}}, "model.config.n_layers", "did you mean 'n_layer'"),
        ({"config": {"n_embd": 15, "n_head": 2}}, "model.config", "divisible"),
        ({"config": {"n_embd": "wide"}}, "model.config", "n_embd"),
        ({"end": "01"}, "model.end", "not a character"),
    ],
)
def test_a_problem_says_what_to_do(changes: dict[str, Any], field: str, says: str) -> None:
    """A misspelt value would silently do nothing: transformers takes any name."""
    [problem] = scratch.check(scratch.Config(**{**GOOD, **changes}), site(None))
    assert problem.field == field
    assert says in str(problem)


def test_a_job_without_a_model_is_refused() -> None:
    with pytest.raises(
        UserError,
        match=exactly("the job has 1 problem:\n  model: this part of the job needs a model; add a section [model]"),
    ):
        load_module(site(None))


@pytest.mark.parametrize("model", [Section(kind="scrach"), Section(kind="scratch", options={"vocabulary": "ab"})])
def test_a_model_that_is_none_is_refused(model: Section) -> None:
    with pytest.raises(UserError):
        load_tokenizer(site(model))

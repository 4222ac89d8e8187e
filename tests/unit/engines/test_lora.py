"""An engine whose model has adapters: they alone are published to it."""

from typing import Any

import anyio.to_thread
import pytest
import torch

from backends.engines.torch import trial
from backends.engines.torch.model import CausalModel
from backends.models.loading import load_module, named_weights
from protocols.errors import InvariantError, UserError
from protocols.sections import Section
from tests.support.batches import GPT2, LLAMA, site
from tests.support.lora import needs_peft, stir, with_lora
from tests.support.texts import exactly
from tests.unit.engines.decoding import asks
from tests.unit.engines.test_torch_engine import opened

pytestmark = needs_peft

MODELS = pytest.mark.parametrize(
    "model",
    [
        pytest.param(with_lora(GPT2), id="gpt2"),
        pytest.param(with_lora(LLAMA, rank=2, targets=["q_proj", "v_proj"]), id="llama"),
    ],
)
PROMPT = [1, 2, 3, 4]


def trained(model: Section) -> Any:
    """Return the module as a trainer has it after a while."""
    module = load_module(site(model))
    stir(module)
    return module


@MODELS
def test_published_adapters_make_the_trainers_model(model: Section) -> None:
    engine = CausalModel(load_module(site(model)), context=None, deterministic=False)
    before, _ = engine.prefill([PROMPT])
    module = trained(model)
    engine.rebind(named_weights(module))
    after, _ = engine.prefill([PROMPT])
    assert not torch.allclose(after, before, atol=1e-3)
    assert torch.allclose(after, module(input_ids=torch.tensor([PROMPT])).logits[:, -1], atol=1e-5)


@MODELS
def test_the_base_is_the_engines_own(model: Section) -> None:
    """A publish costs what the adapters hold, however large the model is."""
    module = load_module(site(model))
    engine = CausalModel(module, context=None, deterministic=False)
    base = {name: parameter.data_ptr() for name, parameter in module.named_parameters() if ".lora_" not in name}
    weights = named_weights(trained(model))
    engine.rebind(weights)
    bound = {name: parameter.data_ptr() for name, parameter in module.named_parameters()}
    assert bound == base | {name: weight.data_ptr() for name, weight in weights.items()}


@MODELS
def test_weights_of_the_model_without_adapters_do_not_fit(model: Section) -> None:
    engine = CausalModel(load_module(site(model)), context=None, deterministic=False)
    plain = Section(kind="scratch", options=model.options | {"lora": None})
    with pytest.raises(InvariantError, match="do not fit the model"):
        engine.rebind(named_weights(load_module(site(plain))))


@pytest.mark.real_time
@MODELS
async def test_the_engines_log_probabilities_are_the_trainers(model: Section) -> None:
    """A gap between the two would be trained away as if it were advantage."""
    module = await anyio.to_thread.run_sync(trained, model)
    async with opened(model=model) as it:
        await it.load(0, named_weights(module))
        answer = await it.engine.generate(asks("a/", PROMPT, samples=3, max_tokens=8))
    for completion in answer.completions:
        ids = torch.tensor([*PROMPT, *completion.token_ids])
        logits = module(input_ids=ids[None]).logits[0, len(PROMPT) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, ids[len(PROMPT) :, None])[:, 0]
        assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=1e-5)


def test_the_trial_at_start_sees_what_fresh_adapters_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their second matrix is 0, so at start no bit of a sample depends on a product with it: later bits do."""
    model = CausalModel(load_module(site(with_lora(LLAMA))), context=None, deterministic=True)
    before = {name: weight.clone() for name, weight in named_weights(model.module).items()}
    trial.check_bits(model)
    assert all(torch.equal(weight, before[name]) for name, weight in named_weights(model.module).items())
    forward = torch.nn.Linear.forward

    def forward_by_rows(layer: torch.nn.Linear, given: torch.Tensor) -> torch.Tensor:
        off = 1e-6 * len(given) if layer.in_features == 8 else 0.0  # of all layers the second matrices alone
        return forward(layer, given) * (1 + off)

    monkeypatch.setattr(torch.nn.Linear, "forward", forward_by_rows)
    with pytest.raises(
        UserError,
        match=exactly(
            "engine.deterministic = true: bits depend on what else is decoded; set MKL_CBWR=AVX2 in "
            "the environment before the process starts, or engine.threads = 1 (not always enough "
            "with model.lora)"
        ),
    ):
        trial.check_bits(model)

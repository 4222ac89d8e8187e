"""Generation that does not depend, to the last bit, on what else is decoded."""

import random
from collections.abc import Generator

import pytest
import torch

from backends.engines.torch import trial
from backends.engines.torch.model import CausalModel
from backends.models.loading import load_module
from protocols.errors import UserError
from protocols.sections import Section
from tests.support.batches import GPT2, LLAMA, VOCABULARY, site
from tests.unit.engines.decoding import Decoding, asks

ODD = Section(  # sizes that are multiples of nothing
    kind="scratch",
    options={
        "architecture": "llama",
        "config": {
            "hidden_size": 36,
            "intermediate_size": 50,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "initializer_range": 0.3,
        },
        "vocabulary": "0123456789+.",
    },
)
MODELS = pytest.mark.parametrize(
    "model", [pytest.param(GPT2, id="gpt2"), pytest.param(LLAMA, id="llama"), pytest.param(ODD, id="odd")]
)


@pytest.fixture
def one_thread() -> Generator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@MODELS
@pytest.mark.usefixtures("one_thread")
def test_company_does_not_change_a_bit(model: Section) -> None:
    """Joining, leaving, longer neighbours, other laws: bits of tokens and log-probabilities stay."""
    chance = random.Random(0)
    requests = [
        asks(
            f"{number}/",
            [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 40))],
            samples=chance.randint(1, 4),
            max_tokens=chance.randint(1, 20),
            temperature=chance.choice([0.0, 0.7, 1.0]),
            top_k=chance.choice([0, 0, 3]),
        )
        for number in range(16)
    ]
    alone = {}
    for request in requests:
        decoding = Decoding(model, deterministic=True)
        decoding.join(request)
        alone |= decoding.finish().completions
    for slots in (5, 19, 64):
        decoding = Decoding(model, slots=slots, deterministic=True)
        for request in chance.sample(requests, len(requests)):
            decoding.join(request)
        assert decoding.finish().completions == alone


@pytest.mark.usefixtures("one_thread")
def test_the_trial_at_start_passes_where_bits_are_kept() -> None:
    trial.check_bits(CausalModel(load_module(site()), context=None, deterministic=True))


@pytest.mark.usefixtures("one_thread")
def test_the_trial_at_start_refuses_where_bits_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose matrix products depend on the number of rows, by the last bits."""
    decode = CausalModel.decode

    def decode_by_rows(model: CausalModel, tokens: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return decode(model, tokens, *rest) * (1 + 1e-6 * len(tokens))  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(CausalModel, "decode", decode_by_rows)
    with pytest.raises(UserError, match="MKL_CBWR"):
        trial.check_bits(CausalModel(load_module(site()), context=None, deterministic=True))

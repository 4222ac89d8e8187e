"""Decoding tried out at start: it warms up what is built lazily, and shows what the machine can promise."""

from collections.abc import Sequence

import torch

from backends.engines.torch.batch import Call
from backends.engines.torch.decoder import Decoder, Finished
from backends.engines.torch.model import CausalModel
from backends.models.loading import named_weights
from protocols.errors import UserError
from protocols.inference import Completion, GenerateRequest, SampleRequest, Sampling
from protocols.messages import WeightVersion

COMPANIES = (1, 3, 15, 16, 40)
"""Numbers of other samples that must not change the bits of one."""


def warm_up(model: CausalModel) -> None:
    """Decode a few tokens.

    Raises:
        UserError: The model cannot be decoded.
    """
    try:
        play(model, [_request(model, 0, 4), _request(model, 1, 7)], deterministic=False)
    except Exception as exc:
        why = f"{type(exc).__name__}: {' '.join(str(exc).split())}"
        raise UserError(f"the torch engine cannot decode this model: {why}") from exc


def check_bits(model: CausalModel) -> None:
    """Compare the bits of one sample alone with those in company of several sizes.

    Raises:
        UserError: They differ on this machine, as it is set up.
    """
    own = named_weights(model.module)
    # adapters start with a matrix of zeros, and a product with zeros has the same bits however it is added up
    model.rebind({name: weight if weight.any() else torch.ones_like(weight) for name, weight in own.items()})
    asked = _request(model, 0, 9)
    alone = play(model, [asked], deterministic=True)[0]
    for others in COMPANIES:
        company = [_request(model, 1 + other, 3 + 5 * other) for other in range(others)]
        if play(model, [*company, asked], deterministic=True)[-1] != alone:
            raise UserError(
                "engine.deterministic = true: bits depend on what else is decoded; set MKL_CBWR=AVX2 in the "
                "environment before the process starts, or engine.threads = 1 (not always enough with model.lora)"
            )
    model.rebind(own)


def play(model: CausalModel, requests: Sequence[GenerateRequest], *, deterministic: bool) -> list[Completion]:
    """Decode requests of one sample each together, under the model's own weights; returns them in order."""
    decoder = Decoder(model, slots=len(requests), deterministic=deterministic)
    decoder.swap(WeightVersion(0), named_weights(model.module))
    calls = [Call(request) for request in requests]
    for call in calls:
        decoder.join(call)
    done: dict[Call, Completion] = {}
    while decoder.busy:
        decoder.step()
        done |= {event.call: event.completion for event in decoder.take_events() if isinstance(event, Finished)}
    return [done[call] for call in calls]


def _request(model: CausalModel, number: int, length: int) -> GenerateRequest:
    length = 1 + length % max(1, min(64, model.context - 1))
    prompt = tuple((7 * number + 3 * place) % model.vocabulary for place in range(length))
    sample = SampleRequest(request_id=f"trial/{number}", stream=f"trial/{number}")
    return GenerateRequest(prompt_ids=prompt, samples=(sample,), sampling=Sampling(max_tokens=8 + number % 5))

"""Decoders over small models, for tests that need no thread."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from backends.engines.torch.batch import Call
from backends.engines.torch.decoder import Decoder, Ended, Finished
from backends.engines.torch.model import CausalModel
from backends.models.loading import load_module, named_weights
from protocols.inference import Completion, GenerateRequest, SampleRequest, Sampling
from protocols.messages import WeightVersion
from protocols.sections import Section
from tests.support.batches import site


class Decoding:
    """A decoder under its model's own weights, and what it computed.

    Attributes:
        shapes: Shape of the token ids of every forward pass, in order.
    """

    def __init__(self, model: Section, *, slots: int = 256, context: int | None = None, deterministic: bool = False):
        self.module = load_module(site(model))
        self.shapes: list[tuple[int, ...]] = []
        self.module.register_forward_pre_hook(self._note, with_kwargs=True)
        causal = CausalModel(self.module, context=context, deterministic=deterministic)
        self.decoder = Decoder(causal, slots=slots, deterministic=deterministic)
        self.decoder.swap(WeightVersion(0), named_weights(self.module))

    def _note(self, module: torch.nn.Module, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        self.shapes.append(tuple(kwargs["input_ids"].shape))

    def join(self, request: GenerateRequest) -> Call:
        call = Call(request)
        self.decoder.join(call)
        return call

    def finish(self) -> "Results":
        """Decode until nothing is left."""
        results = Results({}, [])
        while self.decoder.busy:
            self.decoder.step()
            self.collect(results)
        return results

    def ended(self) -> list[Ended]:
        """Return the calls that ended since the last time without finishing."""
        results = Results({}, [])
        self.collect(results)
        return results.ended

    def collect(self, results: "Results") -> None:
        for event in self.decoder.take_events():
            match event:
                case Finished(completion=completion):
                    results.completions[completion.request_id] = completion
                case Ended() as ended:
                    results.ended.append(ended)


class Results(NamedTuple):
    """Completions by request id, and calls that ended otherwise."""

    completions: dict[str, Completion]
    ended: list[Ended]


def asks(
    prefix: str, prompt: Sequence[int], *, samples: int = 1, stops: tuple[int, ...] = (), **sampling: Any
) -> GenerateRequest:
    """Return a request; ``sampling`` are the fields of ``Sampling``, 8 tokens if they do not say otherwise."""
    values = {"max_tokens": 8, **sampling}
    return GenerateRequest(
        prompt_ids=tuple(prompt),
        samples=tuple(
            SampleRequest(request_id=f"{prefix}{index}/0", stream=f"{prefix}{index}") for index in range(samples)
        ),
        sampling=Sampling(**values),
        stop_token_ids=stops,
    )


def plain_logprobs(module: torch.nn.Module, request: GenerateRequest, completion: Completion) -> torch.Tensor:
    """Return the log-probabilities behind each prompt and completion token, by one plain pass: ``[T, V]``."""
    ids = torch.tensor([request.prompt_ids + completion.token_ids])
    with torch.no_grad():
        logits = module(input_ids=ids, use_cache=False).logits[0]
    return (logits / (request.sampling.temperature or 1.0)).log_softmax(-1)[len(request.prompt_ids) - 1 : -1]

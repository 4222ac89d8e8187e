"""The decoder against plain forward passes of the same model."""

import random
from typing import Any

import pytest
import torch

from backends.models.loading import named_weights
from protocols.errors import Aborted
from protocols.inference import GenerateRequest, Segment
from protocols.messages import WeightVersion
from protocols.sections import Section
from tests.support.batches import GPT2, LLAMA, VOCABULARY
from tests.unit.engines.decoding import Decoding, Results, asks, plain_logprobs

MODELS = pytest.mark.parametrize("model", [pytest.param(GPT2, id="gpt2"), pytest.param(LLAMA, id="llama")])
EQUAL: dict[str, Any] = {"atol": 2e-5, "rtol": 0.0}


def crowd(seed: int, count: int) -> list[GenerateRequest]:
    """Return requests of all kinds and lengths."""
    chance = random.Random(seed)
    return [
        asks(
            f"{seed}/{number}/",
            [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 40))],
            samples=chance.randint(1, 5),
            stops=chance.choice([(), (11,), (3, 7, 11)]),
            max_tokens=chance.randint(1, 40),
            temperature=chance.choice([0.0, 0.5, 1.0, 1.7]),
            top_p=chance.choice([1.0, 0.8]),
            top_k=chance.choice([0, 4]),
        )
        for number in range(count)
    ]


@MODELS
@pytest.mark.parametrize("slots", [3, 64])
def test_log_probabilities_are_those_of_a_plain_pass(model: Section, slots: int) -> None:
    """The trainer differentiates this policy: what the engine says of it must be what it is."""
    decoding = Decoding(model, slots=slots)
    requests = crowd(1, 20)
    for request in requests:
        decoding.join(request)
    completions = decoding.finish().completions
    for request in requests:
        for sample in request.samples:
            done = completions[sample.request_id]
            plain = plain_logprobs(decoding.module, request, done)
            drawn = plain.gather(-1, torch.tensor(done.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(done.logprobs), drawn, **EQUAL)
            room = min(request.sampling.max_tokens, 64 - len(request.prompt_ids))
            stopped = done.token_ids[-1] in request.stop_token_ids
            assert done.finish == ("stop" if stopped else "length")
            assert stopped or len(done.token_ids) == room
            assert not set(done.token_ids[:-1]) & set(request.stop_token_ids)


@MODELS
def test_greedy_decoding_takes_the_likeliest_token(model: Section) -> None:
    decoding = Decoding(model)
    request = asks("g/", [1, 2, 3, 4, 5], max_tokens=30, temperature=0.0)
    decoding.join(request)
    for other in crowd(2, 10):
        decoding.join(other)
    done = decoding.finish().completions["g/0/0"]
    ids = list(request.prompt_ids)
    with torch.no_grad():
        for _ in range(30):
            ids.append(int(decoding.module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    assert list(done.token_ids) == ids[5:]


@MODELS
def test_company_does_not_change_what_is_drawn(model: Section) -> None:
    """Tokens come from the sample's own stream: only rounding may tell company from none."""
    requests = crowd(3, 12)
    alone: dict[str, tuple[int, ...]] = {}
    for request in requests:
        decoding = Decoding(model)
        decoding.join(request)
        alone |= {name: done.token_ids for name, done in decoding.finish().completions.items()}
    decoding = Decoding(model)
    for request in requests:
        decoding.join(request)
    together = {name: done.token_ids for name, done in decoding.finish().completions.items()}
    same = sum(alone[name] == together[name] for name in alone)
    assert same >= 0.95 * len(alone)


def test_a_groups_prompt_is_computed_once_and_prompts_together() -> None:
    decoding = Decoding(GPT2)
    for group in range(3):
        decoding.join(asks(f"{group}/", [group] * 7, samples=5, max_tokens=4))
    decoding.finish()
    assert decoding.shapes == [(3, 7), (15, 1), (15, 1), (15, 1)]


def test_requests_join_and_leave_between_two_tokens() -> None:
    decoding = Decoding(GPT2)
    decoding.join(asks("a/", [1], samples=2, max_tokens=5))
    decoding.decoder.step()
    decoding.join(asks("b/", [1, 2], samples=3, max_tokens=2))
    decoding.finish()
    assert decoding.shapes == [(1, 1), (2, 1), (1, 2), (5, 1), (2, 1), (2, 1)]


def test_waiting_requests_take_free_slots_in_order() -> None:
    decoding = Decoding(GPT2, slots=4)
    for name, samples in (("a/", 3), ("b/", 3), ("c/", 1), ("d/", 9)):
        decoding.join(asks(name, [1], samples=samples, max_tokens=2))
    completions = decoding.finish().completions
    assert [rows for rows, _ in decoding.shapes] == [1, 3, 2, 4, 1, 9], "c does not overtake b; d runs alone"
    assert len(completions) == 16


def test_many_long_prompts_are_computed_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One prefill of everything that waits would need memory without a bound."""
    monkeypatch.setattr("backends.engines.torch.decoder.PREFILL_TOKENS", 100)
    decoding = Decoding(GPT2)
    for group in range(5):
        decoding.join(asks(f"{group}/", [1] * 40, max_tokens=1))
    assert len(decoding.finish().completions) == 5
    assert decoding.shapes == [(2, 40), (2, 40), (1, 40)]


def test_a_shorter_context_can_be_asked_for() -> None:
    decoding = Decoding(GPT2, context=20)
    decoding.join(asks("a/", [1] * 15, max_tokens=50))
    assert len(decoding.finish().completions["a/0/0"].token_ids) == 5


def test_a_swap_in_the_middle_splits_the_completion_into_segments() -> None:
    """AReaL PR#1569: tokens were labelled with a version read at another time than they were made (I29)."""
    decoding = Decoding(GPT2)
    request = asks("a/", [1, 2, 3], samples=2, max_tokens=6)
    decoding.join(request)
    other = {name: weight + 0.3 for name, weight in named_weights(decoding.module).items()}
    old = {name: weight.clone() for name, weight in named_weights(decoding.module).items()}
    decoding.decoder.step()
    decoding.decoder.step()
    decoding.decoder.swap(WeightVersion(5), other)
    decoding.decoder.step()
    decoding.decoder.swap(WeightVersion(6), old)
    decoding.decoder.swap(WeightVersion(7), old)
    for done in decoding.finish().completions.values():
        counts = [(0, 2), (5, 1), (7, 3)]
        assert done.segments == tuple(Segment(version=WeightVersion(one), count=count) for one, count in counts)
        plain = plain_logprobs(decoding.module, request, done).gather(-1, torch.tensor(done.token_ids)[:, None])
        torch.testing.assert_close(torch.tensor(done.logprobs[:2]), plain[:2, 0], **EQUAL)
        assert not torch.allclose(torch.tensor(done.logprobs[2]), plain[2, 0], atol=1e-3), "made by other weights"


def test_a_swap_before_the_first_token_leaves_no_empty_segment() -> None:
    decoding = Decoding(GPT2)
    decoding.join(asks("a/", [1, 2, 3], max_tokens=2))
    decoding.decoder.swap(WeightVersion(1), named_weights(decoding.module))
    done = decoding.finish().completions["a/0/0"]
    assert done.segments == (Segment(version=WeightVersion(1), count=2),)


def test_a_waiting_prompt_is_computed_under_the_weights_that_serve_it() -> None:
    """NeMo-RL PR#4018: prompts were served from a cache that older weights had written (I26)."""
    decoding = Decoding(GPT2, slots=1)
    decoding.join(asks("a/", [1, 2, 3], max_tokens=4))
    request = asks("b/", [1, 2, 3], max_tokens=4)
    decoding.join(request)
    decoding.decoder.step()
    decoding.decoder.swap(
        WeightVersion(1), {name: weight * 1.5 for name, weight in named_weights(decoding.module).items()}
    )
    done = decoding.finish().completions["b/0/0"]
    plain = plain_logprobs(decoding.module, request, done).gather(-1, torch.tensor(done.token_ids)[:, None])
    torch.testing.assert_close(torch.tensor(done.logprobs), plain[:, 0], **EQUAL)


def test_rows_that_stay_are_untouched_when_others_are_aborted() -> None:
    requests = crowd(4, 12)
    undisturbed, disturbed = Decoding(GPT2), Decoding(GPT2)
    for request in requests:
        undisturbed.join(request)
        disturbed.join(request)
    want = undisturbed.finish().completions
    results = Results({}, [])
    for number in (0, 5, 6, 11):
        disturbed.decoder.step()
        disturbed.collect(results)
        disturbed.decoder.abort(f"4/{number}/")
    completions = results.completions | disturbed.finish().completions
    kept = [name for name in want if name in completions]
    assert len(kept) > 10
    for name in kept:
        torch.testing.assert_close(completions[name].logprobs, want[name].logprobs, **EQUAL)


def test_an_abort_ends_running_and_waiting_calls() -> None:
    """verl#6866: a request went on after its client had left (I46)."""
    decoding = Decoding(GPT2, slots=2)
    for name in ("L1/0/", "L1/1/", "L17/0/"):
        decoding.join(asks(name, [1, 2], samples=2, max_tokens=30))
    decoding.decoder.step()
    assert decoding.decoder.abort("L1/") == {"L1/0/0/0", "L1/0/1/0", "L1/1/0/0", "L1/1/1/0"}
    assert decoding.decoder.abort("L1/") == frozenset()
    results = decoding.finish()
    assert set(results.completions) == {"L17/0/0/0", "L17/0/1/0"}
    assert [type(ended.error) for ended in results.ended] == [Aborted, Aborted]


def test_an_abort_that_overtakes_its_request_wins() -> None:
    """verifiers PR#1035: the cancel came before the request was known, and the work ran on."""
    decoding = Decoding(GPT2)
    decoding.decoder.abort("L1/0/")
    decoding.join(asks("L1/0/", [1, 2]))
    assert not decoding.decoder.busy
    [ended] = decoding.ended()
    assert isinstance(ended.error, Aborted)


def test_a_finished_sample_is_not_live_while_its_call_goes_on() -> None:
    decoding = Decoding(GPT2)
    request = asks("a/", [1, 2], samples=20, stops=(0, 1, 2, 3, 4, 5), max_tokens=30)
    decoding.join(request)
    results = Results({}, [])
    while not results.completions:
        decoding.decoder.step()
        decoding.collect(results)
    live = decoding.decoder.abort("a/")
    assert live
    assert live == {sample.request_id for sample in request.samples} - results.completions.keys()


def test_a_dropped_call_is_gone_and_may_be_dropped_twice() -> None:
    decoding = Decoding(GPT2)
    call = decoding.join(asks("a/", [1, 2], max_tokens=30))
    decoding.decoder.step()
    decoding.decoder.drop(call)
    decoding.decoder.drop(call)
    assert not decoding.decoder.busy
    assert [(ended.call, ended.error) for ended in decoding.ended()] == [(call, None)]


def test_a_paused_decoder_has_nothing_to_do() -> None:
    decoding = Decoding(GPT2)
    decoding.join(asks("a/", [1, 2]))
    decoding.decoder.pause()
    assert not decoding.decoder.busy
    decoding.decoder.resume()
    assert decoding.decoder.busy


def test_logits_that_are_not_finite_are_an_error() -> None:
    """Weights that diverged must not come out as samples."""
    decoding = Decoding(GPT2)
    broken = {name: torch.full_like(weight, torch.nan) for name, weight in named_weights(decoding.module).items()}
    decoding.decoder.swap(WeightVersion(1), broken)
    decoding.join(asks("a/", [1, 2]))
    with pytest.raises(FloatingPointError):
        decoding.decoder.step()

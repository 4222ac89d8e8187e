"""Law 6: loss and gradients depend on the samples alone, not on how they were ordered, split or padded."""

import copy
import math
from functools import cache
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from backends.models.loading import load_module
from backends.trainers.torch import Config
from backends.trainers.torch.learner import Learner
from backends.trainers.torch.models import Models
from protocols.errors import InvariantError, PayloadLost
from protocols.sections import Section
from tests.support.batches import EXAMPLE, GPT2, LLAMA, VOCABULARY, Batch, Drawn, Group, make_batch, site
from tests.support.learners import make_learner
from tests.unit.trainers.plain import OBJECTIVES, plain

MODELS = [pytest.param(GPT2, id="gpt2"), pytest.param(LLAMA, id="llama")]


@cache
def _module(architecture: str) -> Any:
    return load_module(site({"gpt2": GPT2, "llama": LLAMA}[architecture]))


def _learner(model: Section = GPT2, **options: Any) -> Learner:
    module = copy.deepcopy(_module(model.options["architecture"]))
    return make_learner(module, **options)


def _gradients(learner: Learner) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in learner.module.parameters()]).clone()


def _values(learner: Learner) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in learner.module.parameters()]).clone()


def _accumulated(learner: Learner, batch: Batch) -> tuple[dict[str, float], Tensor]:
    metrics = learner.accumulate(batch.lease, batch.payloads).metrics
    gradients = _gradients(learner)
    learner.discard()
    return metrics, gradients


tokens = st.integers(0, VOCABULARY - 1)
drawn = st.builds(
    Drawn,
    tokens=st.lists(tokens, max_size=7).map(tuple),
    advantage=st.floats(-2, 2, width=32),
    weight=st.sampled_from([0.0, 1.0, 1.0]),
    logprob=st.floats(-4, -0.5, width=32),
    reward=st.just(0.0),
    logprobs=st.none(),
)
group = st.builds(
    Group,
    prompt=st.lists(tokens, min_size=1, max_size=6).map(tuple),
    samples=st.lists(drawn, min_size=1, max_size=4),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
)
groups = st.lists(group, min_size=1, max_size=5)
thorough = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
brief = settings(thorough, max_examples=6)
each_objective = pytest.mark.parametrize("options", [pytest.param(OBJECTIVES[name], id=name) for name in OBJECTIVES])


@pytest.mark.parametrize("model", MODELS)
@thorough
@given(groups=groups, budget=st.integers(1, 80))
def test_gradients_are_those_of_a_plain_loop(model: Section, groups: list[Group], budget: int) -> None:
    """TRL PR#6024 (I65): the loss was off by 0.5 and 4 times under accumulation."""
    _check_against_plain_loop(_learner(model, micro_batch_tokens=budget), Config(), groups)


@each_objective
@brief
@given(groups=groups, budget=st.integers(1, 80))
def test_gradients_of_every_objective_are_those_of_a_plain_loop(
    options: dict[str, Any], groups: list[Group], budget: int
) -> None:
    _check_against_plain_loop(_learner(micro_batch_tokens=budget, **options), Config(**options), groups)


def _check_against_plain_loop(learner: Learner, cfg: Config, groups: list[Group]) -> None:
    metrics, gradients = _accumulated(learner, make_batch(groups))
    loss, expected = plain(learner.module, groups, cfg)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-5)
    _assert_close(gradients, expected)


def _assert_close(found: Tensor, expected: Tensor) -> None:
    """Compare within the rounding of float32: that of the largest gradient, for a small one may be a sum of such."""
    torch.testing.assert_close(found, expected, atol=1e-5 * max(1.0, float(expected.abs().max())), rtol=1e-5)


@each_objective
@brief
@given(groups=groups, budget=st.integers(1, 80), data=st.data())
def test_order_and_split_do_not_matter(
    options: dict[str, Any], groups: list[Group], budget: int, data: st.DataObject
) -> None:
    """Law 6, for every loss with every aggregation."""
    shuffled = [
        group._replace(samples=data.draw(st.permutations(group.samples)))
        for group in data.draw(st.permutations(groups))
    ]
    whole, gradients = _accumulated(_learner(micro_batch_tokens=10_000, **options), make_batch(groups))
    parts, others = _accumulated(_learner(micro_batch_tokens=budget, **options), make_batch(shuffled))
    _assert_close(gradients, others)
    for name in ("loss", "entropy", "ratio/mean", "ratio/max", "clip_fraction", "kl/behaviour"):
        assert whole[name] == pytest.approx(parts[name], rel=1e-4, abs=1e-5)
    assert whole["train/tokens"] == parts["train/tokens"]


@pytest.mark.parametrize("model", MODELS)
def test_a_long_companion_only_adds_padding(model: Section) -> None:
    """Right padding without a mask: no token may see what stands behind it."""
    short = Group((1, 2), [Drawn((3, 4), 1.0)])
    long = Group((5,) * 30, [Drawn((6,) * 20, 0.0)])
    by_token = {"aggregation": "token"}
    alone, gradients = _accumulated(_learner(model, **by_token), make_batch([short]))
    padded, others = _accumulated(_learner(model, **by_token), make_batch([short, long]))
    share = alone["train/tokens"] / padded["train/tokens"]
    assert padded["loss"] == pytest.approx(alone["loss"] * share, abs=1e-6)
    torch.testing.assert_close(others, gradients * share, atol=1e-6, rtol=1e-5)
    assert alone["train/padding_fraction"] == 0
    assert padded["train/padding_fraction"] == pytest.approx(1 - (3 + 49) / (2 * 49))


def test_masked_and_empty_samples_take_no_part() -> None:
    """I61: a sample whose reward failed weighs nothing, whatever stands in its row: NaN leaves loss and KL numbers."""
    kept = [Drawn((3, 4), 1.0), Drawn((5,), -1.0)]
    masked = [Drawn((6, 7, 8), math.nan, weight=0.0, logprob=math.nan), Drawn((), 1.0)]
    metrics, gradients = _accumulated(_learner(), make_batch([Group((1, 2), kept)]))
    others, same = _accumulated(_learner(), make_batch([Group((1, 2), [masked[0], *kept, masked[1]])]))
    assert metrics == others
    assert all(map(math.isfinite, metrics.values()))
    assert torch.equal(gradients, same)
    assert metrics["train/samples"] == 2
    assert metrics["train/tokens"] == 3


@pytest.mark.parametrize("model", MODELS)
def test_the_same_batches_give_the_same_bits(model: Section) -> None:
    ends: list[Tensor] = []
    for _ in range(2):
        learner = _learner(model, lr=1e-2, micro_batch_tokens=12)
        for step in range(4):
            batch = make_batch(dispatch=step, version=step)
            learner.train_step(batch.lease, batch.payloads)
        ends.append(_values(learner))
    assert torch.equal(*ends)


def test_metrics_of_a_step() -> None:
    learner = _learner(lr=1e-2, micro_batch_tokens=12)
    batch = make_batch()
    metrics = learner.train_step(batch.lease, batch.payloads).metrics
    assert metrics.keys() == {
        "loss", "grad_norm", "entropy", "clip_fraction", "ratio/mean", "ratio/max", "kl/behaviour", "lr",
        "mismatch/mean", "mismatch/max", "mismatch/ratio", "mismatch/ess",
        "train/tokens", "train/samples", "train/micro_batches", "train/padding_fraction", "train/skipped",
        "train/updates",
    }  # fmt: skip
    assert metrics["lr"] == 1e-2
    assert metrics["train/tokens"] == 17
    assert metrics["train/samples"] == 5
    assert metrics["train/micro_batches"] == 2  # widths 9 (6 + 4 + 2 tokens read behind one prompt of 3), 8 and 4
    assert metrics["train/padding_fraction"] == pytest.approx(1 - 16 / (12 + 4))
    assert 0 < metrics["entropy"] <= math.log(VOCABULARY)
    assert metrics["ratio/max"] >= metrics["ratio/mean"] > 0
    assert metrics["kl/behaviour"] >= 0


def test_a_step_raises_the_probability_of_what_was_better() -> None:
    learner = _learner(lr=1e-2)
    better, worse = (3, 4, 5), (6, 7, 8)
    loaded = [Group((1, 2), [Drawn(better, 1.0), Drawn(worse, -1.0)])]

    def margin() -> float:
        logits = learner.module(input_ids=torch.tensor([[1, 2]])).logits[0, -1].log_softmax(-1)
        return (logits[better[0]] - logits[worse[0]]).item()

    before = margin()
    batch = make_batch(loaded)
    learner.train_step(batch.lease, batch.payloads)
    assert margin() > before


@each_objective
def test_masked_samples_take_no_part_in_any_objective(options: dict[str, Any]) -> None:
    """No denominator counts them: neither samples nor tokens."""
    kept = [Drawn((3, 4), 1.0), Drawn((5,), -1.0)]
    masked = Drawn((6, 7, 8), math.nan, weight=0.0, logprob=math.nan)
    alone = _accumulated(_learner(**options), make_batch([Group((1, 2), kept)]))
    among = _accumulated(_learner(**options), make_batch([Group((1, 2), [*kept, masked, Drawn(())])]))
    assert alone[0] == among[0]
    assert torch.equal(alone[1], among[1])


def test_an_entropy_bonus_makes_the_policy_less_sure() -> None:
    """Where no sample was better than another, it is all that moves the policy."""
    groups = [Group((1, 2), [Drawn((3, 4), 0.0), Drawn((5, 6), 0.0)])]
    batch = make_batch(groups)
    learner = _learner(lr=1e-2, entropy_bonus=0.1)
    before = learner.train_step(batch.lease, batch.payloads).metrics
    after, _ = _accumulated(learner, make_batch(groups, dispatch=1, version=1))
    assert before["loss"] == pytest.approx(-0.1 * before["entropy"])
    assert after["entropy"] > before["entropy"]


def test_a_long_gradient_is_scaled_down() -> None:
    """The first step of SGD-like AdamW hides scale, so the gradients themselves are looked at."""
    batch = make_batch([Group((1,), [Drawn((2, 3), 50.0, logprob=-3.0)])])
    learner = _learner(max_grad_norm=0.5)
    learner.accumulate(batch.lease, batch.payloads)
    long = _gradients(learner)
    seen: list[Tensor] = []
    learner.steppers["policy"].optimizer.register_step_pre_hook(lambda *_: seen.append(_gradients(learner)))
    report = learner.apply(batch.lease.dispatch_id)
    assert report.metrics["grad_norm"] == pytest.approx(long.norm().item(), rel=1e-5)
    assert seen[0].norm().item() == pytest.approx(0.5, rel=1e-4)
    assert torch.nn.functional.cosine_similarity(seen[0], long, dim=0).item() == pytest.approx(1, abs=1e-5)


def test_gradients_that_are_not_finite_change_nothing() -> None:
    learner = _learner(lr=1e-2)
    before = _values(learner)
    bad = make_batch([Group((1,), [Drawn((2, 3), math.inf)])])
    report = learner.train_step(bad.lease, bad.payloads)
    assert (report.version, report.mutated, report.metrics["train/skipped"]) == (0, "no", 1.0)
    assert report.consumed == ("L0",)
    assert torch.equal(_values(learner), before)
    assert not learner.steppers["policy"].optimizer.state
    good = make_batch(dispatch=1, version=0)
    report = learner.train_step(good.lease, good.payloads)
    assert (report.version, report.mutated, report.metrics["train/skipped"]) == (1, "yes", 0.0)
    assert _values(learner).isfinite().all()


def test_a_batch_without_tokens_moves_parameters_as_gradients_of_zero_do() -> None:
    """I62: all rewards equal, or all masked, is one and the same step."""
    nothing = [Group((1,), [Drawn((2,), weight=0.0)])]
    zero = [Group((1,), [Drawn((2,), 0.0)])]
    ends: list[Tensor] = []
    for groups in (nothing, zero):
        learner = _learner(lr=1e-2)
        first = make_batch()
        learner.train_step(first.lease, first.payloads)
        batch = make_batch(groups, dispatch=1, version=1)
        report = learner.train_step(batch.lease, batch.payloads)
        assert report.metrics["loss"] == 0
        assert report.metrics["grad_norm"] == 0
        ends.append(_values(learner))
    assert torch.equal(*ends)


def test_warming_up_changes_nothing() -> None:
    learner = _learner(weight_decay=0.1)
    before = _values(learner)
    learner.warm_up()
    assert torch.equal(_values(learner), before)
    assert not _gradients(learner).any()
    assert not learner.steppers["policy"].optimizer.state


def test_payloads_that_do_not_fit_the_batch_are_refused() -> None:
    batch = make_batch()
    first, second = batch.payloads
    cut = msgspec.structs.replace(first.samples[0], logprobs=(-1.0,))
    misfits = [
        [first, {"tensor": 1}],
        [first, msgspec.structs.replace(second, prompt_ids=())],
        [first, msgspec.structs.replace(second, samples=second.samples[:1])],
        [msgspec.structs.replace(first, samples=(cut, *first.samples[1:])), second],
    ]
    learner = _learner()
    for payloads, of in zip(misfits, (1, 1, 1, 0), strict=True):
        with pytest.raises(PayloadLost) as caught:
            learner.accumulate(batch.lease, payloads)
        assert caught.value.owner == batch.lease.groups[of].payload.owner
    assert not _gradients(learner).any()
    learner.accumulate(batch.lease, batch.payloads)


def test_a_payload_of_another_attempt_is_refused() -> None:
    """Law 2: the tokens of an aborted attempt are never trained."""
    batch = make_batch()
    late = msgspec.structs.replace(batch.lease.groups[0], attempt=1)
    lease = msgspec.structs.replace(batch.lease, groups=(late, batch.lease.groups[1]))
    with pytest.raises(InvariantError, match=r"policy\.1/L0/1/"):
        _learner().accumulate(lease, batch.payloads)


def test_a_batch_cut_short_leaves_no_gradients() -> None:
    class Cut(Exception):
        pass

    calls = iter([None, None, Cut()])

    def interrupt() -> None:
        if (raised := next(calls, None)) is not None:
            raise raised

    learner = Learner(
        Models(copy.deepcopy(_module("gpt2"))), Config(micro_batch_tokens=1), site=site(), interrupt=interrupt
    )
    batch = make_batch(EXAMPLE)
    with pytest.raises(Cut):
        learner.accumulate(batch.lease, batch.payloads)
    assert not _gradients(learner).any()
    after = _accumulated(learner, batch)
    never = _accumulated(_learner(micro_batch_tokens=1), batch)
    assert after[0] == never[0]
    assert torch.equal(after[1], never[1])

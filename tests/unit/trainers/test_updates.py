"""Several updates a batch, token-level returns, the critic, the reference: what a step is made of beyond one loss."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from backends.models.loading import load_module
from backends.trainers.torch import Config
from backends.trainers.torch.aggregation import Totals
from backends.trainers.torch.learner import Learner
from backends.trainers.torch.models import Models, load_models
from backends.trainers.torch.options import CriticConfig, KlConfig, ScheduleConfig
from backends.trainers.torch.passes import backward
from backends.trainers.torch.preparation import Preparation
from backends.trainers.torch.ranks import Ranks
from backends.trainers.torch.replicated import Replicated
from backends.trainers.torch.recipes import objective_of
from backends.trainers.torch.rows import trained_groups
from protocols.errors import InvariantError
from tests.support.batches import Drawn, Group, make_batch, site

GROUPS = [
    Group((1, 2, 3), [Drawn((3, 2, 1, 11), 1.0, reward=1.0), Drawn((4, 11), -1.0), Drawn((5, 5, 5, 5), 0.5)]),
    Group((7,), [Drawn((7, 7), -0.5, reward=0.5), Drawn((8, 9, 11), 2.0, reward=1.0)]),
    Group((8, 8), [Drawn((1,), 0.25), Drawn((2, 3, 4, 5, 6), -0.25, reward=0.25)]),
    Group((9,), [Drawn((0, 1), 0.5, reward=1.0), Drawn((6, 6, 6), -0.75)]),
]
SITE = msgspec.structs.replace(site(), steps=10, max_tokens=8)
PPO = {"algorithm": "ppo", "critic": CriticConfig(lr=1e-2)}


def _learner(interrupt: Callable[[], None] = lambda: None, **options: Any) -> Learner:
    cfg = Config(**{"lr": 1e-2, **options})
    return Learner(load_models(SITE, cfg), cfg, site=SITE, interrupt=interrupt)


def _train(learner: Learner, groups: Sequence[Group] = GROUPS, steps: int = 1) -> list[dict[str, float]]:
    metrics: list[dict[str, float]] = []
    for _ in range(steps):
        batch = make_batch(groups, dispatch=learner.version, version=learner.version)
        metrics.append(learner.train_step(batch.lease, batch.payloads).metrics)
    return metrics


def _values(module: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).clone()


def _sure(module: Any) -> list[Group]:
    """Return ``GROUPS`` as the module itself would have drawn them: every ratio is 1."""
    drawn: list[Group] = []
    for group in GROUPS:
        samples: list[Drawn] = []
        for sample in group.samples:
            ids = torch.tensor([*group.prompt, *sample.tokens])
            logprobs = module(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])
            samples.append(sample._replace(logprobs=tuple(logprobs[len(group.prompt) - 1 :, 0].tolist())))
        drawn.append(group._replace(samples=samples))
    return drawn


def test_two_minibatches_are_two_steps_of_the_optimizer() -> None:
    """One version, and the parameters of two steps over half a batch each."""
    at_once, one_by_one = _learner(minibatches=2), _learner()
    (metrics,) = _train(at_once)
    assert (at_once.version, metrics["train/updates"]) == (1, 2.0)
    assert metrics["train/samples"] == 9
    for half in (GROUPS[:2], GROUPS[2:]):
        _train(one_by_one, half)
    torch.testing.assert_close(_values(at_once.module), _values(one_by_one.module))


def test_two_epochs_go_through_the_batch_twice() -> None:
    at_once, one_by_one = _learner(epochs=2), _learner()
    (metrics,) = _train(at_once)
    assert (at_once.version, metrics["train/updates"], metrics["train/samples"]) == (1, 2.0, 9)
    _train(one_by_one, steps=2)
    torch.testing.assert_close(_values(at_once.module), _values(one_by_one.module))


def test_no_more_minibatches_than_groups() -> None:
    assert _train(_learner(minibatches=9))[0]["train/updates"] == 4


def test_the_decoupled_ratio_is_one_at_first_and_not_later() -> None:
    """Tokens that are very old do not clip the first update: its ratio is to the policy that the batch found."""
    old = [group._replace(samples=[one._replace(logprob=-9.0) for one in group.samples]) for group in GROUPS]
    first = _train(_learner(proximal="start", clip_high=0.001, clip_low=0.001), old)[0]
    assert first["ratio/max"] == pytest.approx(1)
    later = _train(_learner(proximal="start", clip_high=0.001, clip_low=0.001, epochs=3), old)[0]
    assert later["ratio/max"] > 1.001
    assert later["clip_fraction"] > 0
    assert _train(_learner(clip_high=0.001), old)[0]["ratio/max"] > 10


@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "ppo"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_gradients_of_the_parts_of_a_batch_add_up_wherever_they_are_computed(name: Any, data: st.DataObject) -> None:
    """Law 6, data-parallel split: with the denominators of the whole, ranks need only add."""
    cfg = Config(algorithm=name, micro_batch_tokens=data.draw(st.integers(1, 60)))
    objective = objective_of(cfg, 8)
    models = load_models(SITE, cfg)
    batch = make_batch(GROUPS)
    groups = trained_groups(batch.lease, batch.payloads)
    preparation = Preparation(models, cfg, objective, hidden=16, interrupt=lambda: None, layout=Replicated(Ranks(0.0)))
    (whole,) = preparation.prepare(groups)
    gradients: list[Tensor] = []
    cut = data.draw(st.integers(0, len(whole.parts)))
    for shards in ([whole.parts], [whole.parts[:cut], whole.parts[cut:]]):
        total = torch.zeros(())
        for shard in shards:
            models.policy.zero_grad()
            for part in shard:
                backward(part, whole.totals, models, cfg, objective)
            total = total + _gradient(models.policy)
        gradients.append(total)
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)
    assert whole.totals == Totals.of(itertools.chain(*groups))


def _gradient(module: Any) -> Tensor:
    return torch.cat(
        [
            torch.zeros_like(one).flatten() if one.grad is None else one.grad.flatten().clone()
            for one in module.parameters()
        ]
    )


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline", "ppo"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whitened_advantages_do_not_depend_on_order_or_split(name: Any, data: st.DataObject) -> None:
    """Law 6 where advantages are of tokens: they are whitened over the batch, not over a micro-batch."""
    shuffled = [
        group._replace(samples=data.draw(st.permutations(group.samples)))
        for group in data.draw(st.permutations(GROUPS))
    ]
    ends = [
        _train(_learner(algorithm=name, micro_batch_tokens=budget), groups)[0]
        for groups, budget in ((GROUPS, 10_000), (shuffled, data.draw(st.integers(1, 60))))
    ]
    for metric in ("loss", "grad_norm", "entropy"):
        assert ends[0][metric] == pytest.approx(ends[1][metric], rel=1e-4, abs=1e-5)


def test_reinforce_pp_prefers_what_earned_more() -> None:
    """Without any comparison within the group: one sample a prompt is enough."""
    groups = [Group((1, 2), [Drawn((3, 4), reward=1.0)]), Group((1, 2), [Drawn((5, 6), reward=0.0)])]
    learner = _learner(algorithm="reinforce_pp")

    def margin() -> float:
        logits = learner.module(input_ids=torch.tensor([[1, 2]])).logits[0, -1].log_softmax(-1)
        return (logits[3] - logits[5]).item()

    before = margin()
    (metrics,) = _train(learner, groups)
    assert margin() > before
    assert metrics["return/mean"] == pytest.approx(0.5)


def test_a_penalty_of_the_reward_is_taken_off_every_token() -> None:
    """Where the policy has moved from the reference, returns shrink by the divergence behind each token."""
    kl = KlConfig(coef=0.5, estimator="k1", place="reward")
    learner = _learner(algorithm="reinforce_pp", kl=kl)
    groups = _sure(learner.module)
    assert _train(learner, groups)[0]["return/mean"] == pytest.approx(
        _train(_learner(algorithm="reinforce_pp"), groups)[0]["return/mean"], abs=1e-5
    )  # the reference is the policy still
    moved = _train(learner, groups)[0]
    assert moved["kl/reference"] > 0


def test_a_critic_learns_what_is_earned() -> None:
    learner = _learner(**PPO)
    metrics = _train(learner, steps=25)
    assert metrics[0]["value/mean"] == 0
    assert metrics[-1]["value/loss"] < metrics[0]["value/loss"] / 2
    assert metrics[-1]["critic/grad_norm"] > 0
    assert set(learner.steppers) == {"policy", "critic"}


def test_the_penalty_holds_the_policy_near_the_reference() -> None:
    """``kl/reference`` is 0 at the first step, whatever the price, and smaller later where the price is high."""
    ends = [_train(_learner(kl=KlConfig(coef=coef)), steps=6) for coef in (0.01, 10.0)]
    for metrics in ends:
        assert metrics[0]["kl/reference"] == pytest.approx(0, abs=1e-6)
    assert ends[1][-1]["kl/reference"] < ends[0][-1]["kl/reference"] / 2


def test_without_a_price_there_is_no_reference() -> None:
    """It would be a second model in memory."""
    assert load_models(SITE, Config()).reference is None
    assert "kl/reference" not in _train(_learner())[0]


def test_the_reference_is_not_trained() -> None:
    cfg = Config(lr=1e-2, kl=KlConfig(coef=0.1))
    models = load_models(SITE, cfg)
    learner = Learner(models, cfg, site=SITE, interrupt=lambda: None)
    assert models.reference is not None
    before = _values(models.reference)
    _train(learner, steps=2)
    assert torch.equal(_values(models.reference), before)
    assert torch.equal(before, _values(load_module(SITE)))


def test_the_learning_rate_follows_the_schedule() -> None:
    schedule = ScheduleConfig(kind="linear", warmup=2, floor=0.1)
    rates = [metrics["lr"] for metrics in _train(_learner(lr=1e-3, schedule=schedule), steps=11)]
    assert rates[:3] == pytest.approx([5e-4, 1e-3, 1e-3])
    assert rates[6] == pytest.approx(1e-3 * (1 - 0.9 / 2))
    assert rates[-1] == pytest.approx(1e-4)


def test_an_update_that_is_not_finite_is_left_out_alone() -> None:
    bad = [*GROUPS[:2], GROUPS[2]._replace(samples=[Drawn((2, 3), math.inf)]), GROUPS[3]]
    learner, reference = _learner(minibatches=4), _learner()
    (metrics,) = _train(learner, bad)
    assert metrics["train/skipped"] == 0.25
    for group in (GROUPS[0], GROUPS[1], GROUPS[3]):
        _train(reference, [group])
    torch.testing.assert_close(_values(learner.module), _values(reference.module))


def test_a_failure_between_two_updates_is_said_and_only_a_checkpoint_leads_on() -> None:
    """Half of a step is neither a step nor none: ``partial``."""
    learner = _learner(minibatches=2)
    batch = make_batch(GROUPS)
    learner.accumulate(batch.lease, batch.payloads)
    steps = 0

    def fail(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise MemoryError

    learner.steppers["policy"].optimizer.register_step_pre_hook(fail)
    with pytest.raises(MemoryError):
        learner.apply(batch.lease.dispatch_id)
    report = learner.outcome(batch.lease.dispatch_id)
    assert report is not None
    assert (report.mutated, report.version) == ("partial", 0)
    learner.discard()
    again = make_batch(GROUPS, dispatch=1)
    with pytest.raises(InvariantError, match="half-way through D0; load a checkpoint"):
        learner.check(again.lease)
    learner.restart(learner.version)
    learner.check(again.lease)


def test_nothing_interrupts_a_batch_whose_first_update_was_made() -> None:
    cut = False

    def interrupt() -> None:
        if cut:
            raise InterruptedError

    learner = _learner(interrupt, minibatches=2)
    batch = make_batch(GROUPS)
    learner.accumulate(batch.lease, batch.payloads)
    cut = True
    assert learner.apply(batch.lease.dispatch_id).mutated == "yes"


def test_models_share_nothing_that_is_trained() -> None:
    models: Models = load_models(SITE, Config(algorithm="ppo", kl=KlConfig(coef=0.1)))
    assert models.critic is not None
    own = [{id(one) for one in module.parameters()} for module in (models.policy, models.reference, models.critic)]
    assert not own[0] & own[1]
    assert not own[0] & own[2]

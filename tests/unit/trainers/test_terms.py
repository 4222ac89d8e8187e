"""What the loss of a token is weighted with: who drew it, and whether it is trained on at all."""

from typing import Any

import pytest
import torch
from torch import Tensor

from backends.trainers.torch.microbatch import MicroBatch, collate
from backends.trainers.torch.options import RejectConfig
from backends.trainers.torch.packing import Strip
from backends.trainers.torch.recipes import Objective
from backends.trainers.torch.rows import Row
from backends.trainers.torch.terms import Terms, policy_terms


def _micro(behaviour: list[list[float]], advantage: float = 1.0) -> MicroBatch:
    """Return samples of one prompt, with these log-probabilities when they were drawn."""
    rows = [
        Row(
            prompt=(1,),
            completion=(2,) * len(one),
            behaviour=tuple(one),
            advantage=advantage,
            reward=0.0,
            weight=1.0,
            temperature=1.0,
        )
        for one in behaviour
    ]
    return collate([Strip(tuple(rows))], torch.device("cpu"))


def _terms(
    objective: Objective,
    logprobs: list[float],
    micro: MicroBatch,
    *,
    proximal: list[float] | None = None,
    reject: RejectConfig | None = None,
) -> tuple[Terms, Tensor]:
    now = torch.tensor(logprobs, requires_grad=True)
    terms = policy_terms(objective, reject, now, micro, None if proximal is None else torch.tensor(proximal))
    (gradient,) = torch.autograd.grad(terms.loss.sum(), now)
    return terms, gradient


def test_truncated_weights_of_tokens_of_skyrl() -> None:
    """Differences of 0.5, -0.5 and 1: e^1 is more than 2, a third of the tokens is truncated."""
    objective = Objective(loss="reinforce", importance="token", importance_cap=2.0)
    terms, gradient = _terms(objective, [-1.0, -1.0, -1.0], _micro([[-1.5, -0.5, -2.0]]))
    torch.testing.assert_close(-gradient, torch.tensor([1.6487, 0.6065, 2.0]), rtol=1e-4, atol=1e-4)
    assert terms.importance is not None
    assert terms.importance.limited.tolist() == [False, False, True]


def test_truncated_weights_of_sequences_of_skyrl() -> None:
    """Differences of 0.5, -0.5 and 1 make e; one of 3 makes e^3, which is cut at 5."""
    objective = Objective(loss="reinforce", importance="sequence", importance_cap=5.0)
    terms, gradient = _terms(objective, [-1.0, -1.5, -0.5, -2.0], _micro([[-1.5, -1.0, -1.5], [-5.0]]))
    torch.testing.assert_close(-gradient, torch.tensor([2.7183, 2.7183, 2.7183, 5.0]), rtol=1e-4, atol=1e-4)
    assert terms.importance is not None
    assert terms.importance.limited.tolist() == [False, False, False, True]


def test_the_decoupled_form_clips_against_the_proximal_policy_and_weighs_with_it() -> None:
    """AReaL, arXiv 2505.24298: ratios to the proximal policy 1.5 and 1, of that to the behaviour policy 2 and 0.5."""
    objective = Objective(proximal="start", importance="token", importance_cap=10.0)
    behaviour, proximal = torch.tensor([0.1, 0.4]), torch.tensor([0.2, 0.2])
    terms, gradient = _terms(
        objective,
        torch.tensor([0.3, 0.2]).log().tolist(),
        _micro([behaviour.log().tolist()]),
        proximal=proximal.log().tolist(),
    )
    torch.testing.assert_close(terms.loss, torch.tensor([-2.0 * 1.2, -0.5 * 1.0]))
    torch.testing.assert_close(gradient, torch.tensor([0.0, -0.5]))
    assert terms.policy.clipped.tolist() == [True, False]


@pytest.mark.parametrize("loss", ["clip", "cispo"])
def test_a_policy_that_has_not_moved_is_its_own_proximal_policy(loss: Any) -> None:
    """With one update a batch the decoupled form is the truncated importance weight alone, whatever the age."""
    objective = Objective(loss=loss, proximal="start", importance="token", importance_cap=2.0)
    terms, gradient = _terms(objective, [-1.0, -1.0, -1.0], _micro([[-1.5, -0.5, -2.0]]))
    torch.testing.assert_close(-gradient, torch.tensor([1.6487, 0.6065, 2.0]), rtol=1e-4, atol=1e-4)
    assert not terms.policy.clipped.any()


def test_rejected_tokens_have_neither_loss_nor_gradient() -> None:
    """Ratios 1, e^-1 and e^2 against [0.5, 5]; an infinite loss times 0 would not be 0."""
    terms, gradient = _terms(
        Objective(), [-1.0, -2.0, -1.0], _micro([[-1.0, -1.0, -3.0]]), reject=RejectConfig(by="token")
    )
    assert terms.rejection is not None
    assert terms.rejection.limited.tolist() == [False, True, True]
    torch.testing.assert_close(terms.loss, torch.tensor([-1.0, 0.0, 0.0]))
    torch.testing.assert_close(gradient, torch.tensor([-1.0, 0.0, 0.0]))


@pytest.mark.parametrize(("by", "kept"), [("mean", [True, True, True, False]), ("worst", [False, False, False, False])])
def test_samples_are_rejected_whole(by: Any, kept: list[bool]) -> None:
    """Ratios e^2, 1 and e^-2 have a geometric mean of 1; the second sample's is e^2."""
    micro = _micro([[-3.0, -1.0, -1.0], [-3.0]])
    terms, _ = _terms(Objective(), [-1.0, -1.0, -3.0, -1.0], micro, reject=RejectConfig(by=by))
    assert (terms.loss != 0).tolist() == kept

"""What an algorithm does with tokens, by its name. Imports neither torch nor numpy.

The controller has the other half, ``conductor/algorithms/table.py``: what it does with the rewards of groups.
"""

from collections.abc import Mapping

import msgspec

from backends.trainers.torch.options import Aggregation, Config, Importance, Loss, Proximal, Returns
from protocols.messages import Message
from protocols.training import Algorithm


class Objective(Message, frozen=True, kw_only=True):
    """What is maximized. The fields mean what they mean in ``Config``."""

    loss: Loss = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    proximal: Proximal = "behaviour"
    importance: Importance = "none"
    importance_cap: float = 2.0
    returns: Returns = "sample"
    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = False
    aggregation: Aggregation = "token"
    aggregation_length: int | None = None


RECIPES: Mapping[Algorithm, Objective] = {
    "grpo": Objective(aggregation="sequence"),
    "dapo": Objective(clip_high=0.28),
    "dr_grpo": Objective(aggregation="constant"),
    "rloo": Objective(loss="reinforce", aggregation="constant"),
    "maxrl": Objective(),
    "lite_ppo": Objective(),
    "gspo": Objective(loss="gspo", clip_low=3e-4, clip_high=4e-4, aggregation="sequence"),
    "cispo": Objective(loss="cispo", clip_low=1.0, clip_high=4.0),
    "reinforce_pp": Objective(returns="discounted", whiten=True),
    "reinforce_pp_baseline": Objective(whiten=True),
    "ppo": Objective(returns="gae", lam=0.95, whiten=True),
}
"""Sources: docs/algorithms.md."""


def objective_of(cfg: Config, max_tokens: int | None) -> Objective:
    """Return the recipe of ``cfg.algorithm`` with what the job says otherwise.

    Args:
        cfg: The options.
        max_tokens: Most tokens of one completion, if the job says; the constant of ``constant``.
    """
    names = [field.name for field in msgspec.structs.fields(Objective)]
    given = {name: value for name in names if (value := getattr(cfg, name)) is not None}
    objective = msgspec.structs.replace(RECIPES[cfg.algorithm], **given)
    if objective.aggregation == "constant" and objective.aggregation_length is None:
        return msgspec.structs.replace(objective, aggregation_length=max_tokens)
    return objective

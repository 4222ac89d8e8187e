"""Learners without a port around them."""

from typing import Any

from backends.trainers.torch import Config
from backends.trainers.torch.learner import Learner
from backends.trainers.torch.models import Models
from tests.support.batches import site


def make_learner(module: Any, **options: Any) -> Learner:
    """Return a learner of a policy alone, with options of ``Config``."""
    return Learner(Models(module), Config(**options), site=site(), interrupt=lambda: None)

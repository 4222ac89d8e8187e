"""How a simulated world is described in a job."""

from typing import Annotated

from msgspec import Meta

from protocols.faults import FaultPlan
from protocols.messages import Message

Positive = Annotated[float, Meta(gt=0)]


class Config(Message, frozen=True, kw_only=True):
    """Options of ``[backend] kind = "sim"``. Distributions are named as ``backends.sim.distributions`` says.

    Attributes:
        sample: How long one sample takes on an engine that runs nothing else. ``empirical`` draws from the
            lengths in the record of a run, at ``tokens_per_s``.
        tokens_per_s: Tokens of a sample that runs alone.
        slowdown: Seconds of a token grow by this fraction for every further sample that runs on its engine.
        slots: Samples that one engine runs at once; the others wait.
        train: How long a train step takes. ``empirical`` draws from ``time/train_s`` of a run.
        publish: How long an engine stands still to load weights. ``empirical``: ``time/publish_s``.
        reward: How long it takes to grade a group.
        faults: What goes wrong.
    """

    sample: str = "constant:1.0"
    tokens_per_s: Positive = 100.0
    slowdown: Annotated[float, Meta(ge=0)] = 0.0
    slots: Annotated[int, Meta(ge=1)] = 256
    train: str = "constant:1.0"
    publish: str = "constant:0.0"
    reward: str = "constant:0.0"
    faults: FaultPlan = FaultPlan()

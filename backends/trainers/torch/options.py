"""The ``train`` section of a job. Imports neither torch nor numpy."""

from typing import Annotated, Literal

from msgspec import Meta

from backends.trainers.torch.schedule import Schedule
from protocols.messages import Message
from protocols.training import Algorithm

NonNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Decay = Annotated[float, Meta(ge=0, lt=1)]
Count = Annotated[int, Meta(ge=1)]
DualClip = Annotated[float, Meta(gt=1)]

Loss = Literal["clip", "gspo", "cispo", "reinforce"]
Importance = Literal["none", "token", "sequence"]
Proximal = Literal["behaviour", "start"]
Aggregation = Literal["token", "sequence", "constant"]
Returns = Literal["sample", "discounted", "gae"]
Estimator = Literal["k1", "k2", "k3", "k1+", "k3+"]
Sharding = Literal["no_shard", "full_shard"]


class ScheduleConfig(Message, frozen=True, kw_only=True):
    """How the learning rates change from step to step.

    Attributes:
        kind: What follows the warm-up: ``constant``, or a fall along a ``linear`` or a ``cosine`` to ``floor``.
        warmup: Steps in which they rise evenly to their full value.
        steps: Where the fall ends; None: the job's ``steps``.
        floor: What is left then, as a part of the full value.
    """

    kind: Schedule = "constant"
    warmup: Annotated[int, Meta(ge=0)] = 0
    steps: Count | None = None
    floor: Fraction = 0.0


class KlConfig(Message, frozen=True, kw_only=True):
    """What it costs to go away from the reference, the policy that the job starts from.

    Attributes:
        coef: The price of a nat; 0: there is no reference.
        estimator: Of the divergence at each token: ``k1``, ``k2`` or ``k3``; with ``+``, that value with the gradient
            of ``k2``.
        place: Added to the ``loss``, or taken off the ``reward`` of each token, where returns are of tokens.
    """

    coef: NonNegative = 0.0
    estimator: Estimator = "k3"
    place: Literal["loss", "reward"] = "loss"


class RejectConfig(Message, frozen=True, kw_only=True):
    """Which tokens are left out for having gone too far off policy; they still count in denominators.

    Attributes:
        by: A ``token`` by its own ratio of the trained policy (or the proximal one) over that which drew it; all
            tokens of a sample by the geometric ``mean`` of their ratios, or by the ``worst`` of them.
        low: The ratio may be down to this.
        high: And up to this.
    """

    by: Literal["token", "mean", "worst"]
    low: NonNegative = 0.5
    high: Positive = 5.0


class CriticConfig(Message, frozen=True, kw_only=True):
    """The critic of ``returns = "gae"``: a second model of the policy's kind, with a number for each token.

    Attributes:
        lr: Learning rate of its AdamW, often ten times the policy's; None: the policy's. The other settings, and the
            schedule, are the policy's.
        clip: A value that moved further than this from where the batch found it moves no more; None: no bound.
    """

    lr: Positive | None = None
    clip: Positive | None = 0.2


class Config(Message, frozen=True, kw_only=True):
    """The ``train`` section of a job. What is None is as ``algorithm`` has it: see ``recipes.py``.

    Attributes:
        algorithm: A recipe by the name of its paper: the advantages that the controller computes, and all
            options below that are None.
        lr: Learning rate of AdamW.
        schedule: How it changes.
        betas: Decay of AdamW's two moments.
        eps: Added to the root of AdamW's second moment.
        weight_decay: Of all parameters alike.
        max_grad_norm: Gradients are scaled down to this global norm; 0: never.
        epochs: How often a batch is gone through.
        minibatches: Optimizer steps of each time: its groups are split into so many parts.
        loss: ``clip`` (PPO, GRPO, DAPO), ``gspo``, ``cispo`` or ``reinforce``.
        clip_low: The probability ratio counts down to ``1 - clip_low``; not for ``reinforce``.
        clip_high: And up to ``1 + clip_high``.
        dual_clip: For ``clip`` and ``gspo``: where the advantage is negative, the ratio counts up to this at most.
        proximal: What the ratio in the loss compares with: the policy that drew the tokens (``behaviour``), or the one
            that was trained when the batch came (``start``: the decoupled form).
        importance: Tokens are weighted with the ratio over the policy that drew them, of the ``token``, of its
            whole ``sequence``, or not at all; for ``reinforce`` and with ``proximal = "start"``.
        importance_cap: Such a weight is at most this.
        reject: Leaves out what is too far off policy; None: nothing.
        returns: Each token's advantage is its ``sample``'s as the controller computed it, or comes from the rewards
            of tokens: their ``discounted`` sum, or ``gae`` with a critic.
        gamma: What a reward one token later counts; not for ``sample``.
        lam: Of ``gae``: 1 trusts rewards alone, 0 the critic's next value.
        whiten: Shift and scale the advantages of all tokens of a batch to mean 0 and deviation 1.
        aggregation: The loss is the mean over all tokens (``token``), over samples of the mean over their tokens
            (``sequence``), or over samples of the sum over their tokens divided by a ``constant``.
        aggregation_length: That constant, in tokens; None: ``sampling.max_tokens``.
        entropy_bonus: The mean entropy of the tokens, in nats, times this is subtracted from the loss.
        kl: The price of going away from the reference.
        critic: Only for ``returns = "gae"``.
        micro_batch_tokens: Most tokens of one forward and backward pass, padding counted. A longer sample
            is a pass of its own.
        threads: Cores that a pass uses. It is the whole process's setting; None leaves it alone.
        sharding: What each of several ranks holds: all parameters, gradients and optimizer states (``no_shard``), or a
            part of each (``full_shard``, FSDP2).
        rank_timeout_s: How long one of several ranks waits for the others, which may have a longer share.
    """

    algorithm: Algorithm = "grpo"
    lr: Positive = 1e-6
    schedule: ScheduleConfig = ScheduleConfig()
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    max_grad_norm: NonNegative = 1.0
    epochs: Count = 1
    minibatches: Count = 1
    loss: Loss | None = None
    clip_low: Fraction | None = None
    clip_high: NonNegative | None = None
    dual_clip: DualClip | None = None
    proximal: Proximal | None = None
    importance: Importance | None = None
    importance_cap: Positive | None = None
    reject: RejectConfig | None = None
    returns: Returns | None = None
    gamma: Fraction | None = None
    lam: Fraction | None = None
    whiten: bool | None = None
    aggregation: Aggregation | None = None
    aggregation_length: Count | None = None
    entropy_bonus: NonNegative = 0.0
    kl: KlConfig = KlConfig()
    critic: CriticConfig = CriticConfig()
    micro_batch_tokens: Count = 16384
    threads: Count | None = None
    sharding: Sharding = "no_shard"
    rank_timeout_s: Positive = 600.0

"""The job: what the controller itself decides, and the sections that name adapters."""

import math
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from protocols.fleet import Restarts, Strategy
from protocols.inference import PublishMode, Sampling
from protocols.messages import Message, RegistrationKey
from protocols.pauses import LONGEST_S
from protocols.sections import Section
from protocols.training import Algorithm

PositiveInt = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]


class FilterConfig(Message, frozen=True, kw_only=True):
    """What becomes of a group whose samples all earned the same: its advantages are zero.

    Attributes:
        equal_rewards: ``refill`` filters it and admits another prompt in its place; ``keep`` trains it.
        ceiling: Most groups filtered for one step; None: as many as a batch holds.
        on_ceiling: Past the ceiling, ``keep`` trains such groups as they are, ``short`` trains what the
            step has without them, ``fail`` ends the run.
    """

    equal_rewards: Literal["refill", "keep"] = "refill"
    ceiling: Annotated[int, Meta(ge=0)] | None = None
    on_ceiling: Literal["keep", "short", "fail"] = "keep"


class CheckpointConfig(Message, frozen=True, kw_only=True):
    """When checkpoints are written; the last one is written at the end of the run, and when it is stopped.

    Attributes:
        every: Steps between two; 0: only the last one.
        keep: How many of the newest are kept; an older one is removed when the newer one is complete.
        keep_best: How many are kept besides that were best when they were evaluated. One whose evaluation is still to
            come is kept until then.
        metric: Of the evaluation, which says how good one is.
        mode: Whether more of it is better, or less.
        compact_events: Events after which a checkpoint lets the record be summed up: what is final is then
            counted and no more listed one by one. 0: never.
        durability: What of the groups that are not trained yet outlives the process: ``leases``: their prompts, which
            a resume generates anew; ``groups``: the samples of finished ones as well, in the run's folder.
    """

    every: Annotated[int, Meta(ge=0)] = 50
    keep: PositiveInt = 2
    keep_best: Annotated[int, Meta(ge=0)] = 0
    metric: str = "eval/reward/mean"
    mode: Literal["max", "min"] = "max"
    compact_events: Annotated[int, Meta(ge=0)] = 1_000_000
    durability: Literal["leases", "groups"] = "leases"


class Deadlines(Message, frozen=True, kw_only=True):
    """How long one call of a port may take, in seconds.

    Attributes:
        start: Launching one workload.
        prompt: Drawing one prompt.
        group: Generating one group, once.
        reward: Grading one group, once.
        train: One train step.
        publish: Staging weights, or loading them into the engines.
        checkpoint: Writing one checkpoint.
        record: Writing to the ledger or a tracker, and releasing payloads.
        abort: Confirming an abort, once. A run that ends stops what is lent within twice this.
        reconcile: Trying an abort again that nobody confirms.
        evaluation: One evaluation, from its first prompt to its last grade; publishing waits for it, unless it has
            engines of its own.
        stall: How long a run may stand still, no call of a port beginning or ending, before it is given up; above
            all the others, and above the longest pause between two tries. None: twice the longest of them.
    """

    start: Seconds = 600.0
    prompt: Seconds = 120.0
    group: Seconds = 600.0
    reward: Seconds = 600.0
    train: Seconds = 3600.0
    publish: Seconds = 600.0
    checkpoint: Seconds = 600.0
    record: Seconds = 60.0
    abort: Seconds = 10.0
    reconcile: Seconds = 600.0
    evaluation: Seconds = 3600.0
    stall: Seconds | None = None

    @property
    def others(self) -> dict[str, float]:
        """Every deadline but ``stall``, by its name."""
        return {name: seconds for name, seconds in structs.asdict(self).items() if name != "stall"}

    @property
    def stall_s(self) -> float:
        """How long a run may stand still."""
        return self.stall or 2 * max(*self.others.values(), LONGEST_S)


class EvaluationConfig(Message, frozen=True, kw_only=True):
    """What is evaluated beside the training, and when. It trains nothing and is in none of the run's accounts.

    Attributes:
        every: Steps between two; 0: only the one at the end of the run.
        prompts: Where its prompts come from; they are drawn once and are the same every time. None only where a
            source is handed over in code.
        size: How many of them; None: one epoch.
        samples: Completions of each prompt.
        sampling: How their tokens are drawn; None: as in training.
        reward: What grades them; None: what grades the training.
        slots: Prompts in flight at once; None: as many as a batch has.
        engines: Engines of the run that evaluate and do nothing else, fewer than all; None: none. Without them the
            training's engines evaluate, and are published nothing new meanwhile.
        on_failure: An evaluation that comes to nothing is counted, or ends the run.
    """

    every: Annotated[int, Meta(ge=0)] = 0
    prompts: Section | None = None
    size: PositiveInt | None = None
    samples: PositiveInt = 1
    sampling: Sampling | None = None
    reward: Section | None = None
    slots: PositiveInt | None = None
    engines: PositiveInt | None = None
    on_failure: Literal["count", "fail"] = "count"


class RoleConfig(Message, frozen=True, kw_only=True):
    """How one role is launched; what it runs is said by its section of the job, or here where it is the user's own.

    Attributes:
        kind: A role of the user's own: its adapter, ``module:name``.
        options: Of that adapter.
        command: A role of the user's own: a program and its arguments, which runs as long as the run does.
        instances: How many; None: one, and as many rollouts as ``engines`` says.
        cpus: Of each instance: a whole number are its alone, any other number is a share of those left over.
        accelerators: Of each instance; a fleet without any runs everything on the CPU.
        memory_gib: Of each instance.
        placement: ``pack`` fills one node before the next, ``spread`` takes the emptiest failure domain.
        per_node: So many instances on each of its nodes; None: as many as fit.
        devices: The numbers of each instance's accelerators on its node, in the order of the instances; None: the
            lowest that are free.
        share_devices: Whether what ``devices`` names may be named twice; every role that shares one must say so.
        environment: Variables, laid over ``fleet.environment``.
        instance_environment: Variables of one instance by its number, laid over ``environment``.
        restarts: Failure budget, one for each cause.
        min, max: Fewest and most instances that ``conductor scale`` may ask for while the run goes on, for the role
            ``rollout``; None: one, and as many as find a place.
        master: A class of the user's that looks after the role beside the controller, ``module:name``, and what it is
            made with; None: the default policy decides alone.
    """

    kind: str | None = None
    options: dict[str, Any] = {}
    command: tuple[str, ...] = ()
    instances: PositiveInt | None = None
    cpus: Annotated[float, Meta(ge=0)] = 0.0
    accelerators: Count = 0
    memory_gib: Annotated[float, Meta(ge=0)] = 0.0
    placement: Strategy = "pack"
    per_node: PositiveInt | None = None
    devices: tuple[tuple[Count, ...], ...] | None = None
    share_devices: bool = False
    environment: dict[str, str] = {}
    instance_environment: dict[str, dict[str, str]] = {}
    restarts: Restarts = Restarts()
    min: PositiveInt | None = None
    max: PositiveInt | None = None
    master: Section | None = None


class CollocateConfig(Message, frozen=True, kw_only=True):
    """Roles whose instances lie together: in as many bundles as the fewest of them has instances.

    Attributes:
        roles: At least two.
        share: ``node``: a bundle lies on one node; ``device``: its roles use the same accelerators as well.
    """

    roles: Annotated[tuple[str, ...], Meta(min_length=2)]
    share: Literal["node", "device"] = "node"


class QueueConfig(Message, frozen=True, kw_only=True):
    """A queue between roles.

    Attributes:
        consumer: The role whose workers take from it.
        size: Items that it holds; whoever puts one more waits.
    """

    consumer: str
    size: PositiveInt = 16


class CheckConfig(Message, frozen=True, kw_only=True):
    """Checking the nodes of the ranks before they train, and again when some have moved.

    Attributes:
        deadline_s: How long one trial of a pair may take.
        slower: A node is slow that took more than this many times the median.
        exclude_slow: Whether a slow node is set aside like one that failed, or only told of.
    """

    deadline_s: Seconds = 60.0
    slower: Annotated[float, Meta(gt=1)] = 2.0
    exclude_slow: bool = False


class FleetConfig(Message, frozen=True, kw_only=True):
    """Where the workers of a job run, and with what.

    Attributes:
        environment: Variables of every worker.
        roles: By name; a role that is not named has one instance, which shares what is there.
        collocate: What lies together.
        queues: Between roles, by name.
        check: How the nodes of several ranks are checked before they train; None: they are not.
        hooks: Classes of the user's that are told of the groups, ``module:name`` each, and what they are made with.
        answer_s: How long a hook, or the master of a role, may take for one call.
    """

    environment: dict[str, str] = {}
    roles: dict[str, RoleConfig] = {}
    collocate: tuple[CollocateConfig, ...] = ()
    queues: dict[str, QueueConfig] = {}
    check: CheckConfig | None = None
    hooks: tuple[Section, ...] = ()
    answer_s: Seconds = 10.0


def default_ledger(run_dir: str | None) -> Section:
    """Return the section of a job that names no ledger."""
    return Section(kind="memory" if run_dir is None else "sqlite")


class RunConfig(Message, frozen=True, kw_only=True):
    """A job.

    Attributes:
        name: Names the run's folder and its record.
        seed: Of prompts, tokens and weights.
        steps: Train steps to take; fewer when the prompts end before.
        batch_groups: Prompt groups of one train step.
        group_size: Samples of one group.
        max_age: Weight versions that a group may be old when it is trained; 0 is synchronous, 1 one step off. A
            fraction lets a part of a further batch be generated ahead.
        staleness: What becomes of a group that would be over age: ``wait`` (the trainer waits), ``drop`` (another
            one takes its place), ``partial`` (it begins anew), ``loose`` (it is trained), or a sampler of your own,
            ``module:name``.
        oversample: Groups generated for one batch at ``max_age`` 0, as a multiple of it; those that finish first are
            trained.
        publish: How running groups meet new weights: ``inflight`` (between two tokens), ``interrupt`` (engines stand
            still meanwhile) or ``drain`` (they finish first).
        slots: Groups in flight at once; None: as many as ``max_age`` lets be useful.
        engines: How many engines are launched, all equal; those that only evaluate included.
        remainder: Prompts left over at the end of an epoch that do not fill a batch: ``train`` them as a
            short batch, ``drop`` them, or ``carry`` them over into the next epoch.
        attempts: Times that one group may be generated, for transient failures.
        retries: Failures in a row that are put up with of grading, of drawing prompts, of a train step and of staging
            weights each; any success refills it. Between two tries there are pauses that grow to 30 s.
        max_dropped: Groups that may be dropped for bad data in a run, as a fraction of those admitted
            (counted from the tenth on).
        filter: Groups that teach nothing.
        sampling: How tokens are drawn.
        checkpoint: When the run's state is written.
        evaluation: What is evaluated beside the training; None: nothing.
        deadlines: How long a wait may take.
        fleet: Where workers run, and with what.
        lag_interval_s: Seconds between two measurements of the event loop's lag; 0 measures none.
        freeze_gc: After warm-up, hide what is alive from the garbage collector and let it look at the rest seldom,
            until the run ends. It is the whole process's setting; see ``conductor.collector``.
        registration: The tenant of the engines.
        run_dir: Where the run writes; None writes nothing: there is no checkpoint, and no resume.
        job_dir: Folder that relative paths start from; None: the working folder.
        ledger: The record of ownership; None: ``sqlite`` in the run's folder, ``memory`` where there is none.
        model, prompts, reward, episode, engine, train, backend, trackers: Adapters.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    seed: Annotated[int, Meta(ge=0)] = 0
    steps: PositiveInt
    batch_groups: PositiveInt
    group_size: PositiveInt
    max_age: Annotated[float, Meta(ge=0)] = 0
    staleness: str = "wait"
    oversample: Annotated[float, Meta(ge=1)] = 1.0
    publish: PublishMode = "inflight"
    slots: PositiveInt | None = None
    engines: PositiveInt = 1
    remainder: Literal["train", "drop", "carry"] = "train"
    attempts: PositiveInt = 3
    retries: PositiveInt = 8
    max_dropped: Annotated[float, Meta(ge=0, le=1)] = 0.5
    filter: FilterConfig = FilterConfig()
    sampling: Sampling
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig | None = None
    deadlines: Deadlines = Deadlines()
    fleet: FleetConfig = FleetConfig()
    lag_interval_s: Annotated[float, Meta(ge=0)] = 0.01
    freeze_gc: bool = True
    registration: RegistrationKey = RegistrationKey()
    run_dir: str | None = None
    job_dir: str | None = None
    model: Section | None = None
    prompts: Section | None = None
    reward: Section | None = None
    episode: Section = Section(kind="single_turn")
    engine: Section = Section(kind="torch")
    train: Section = Section(kind="torch")
    backend: Section = Section(kind="inproc")
    ledger: Section | None = None
    trackers: tuple[Section, ...] = (Section(kind="jsonl"),)

    @property
    def algorithm(self) -> Algorithm:
        """How rewards become advantages."""
        return algorithm_of(self.train)

    @property
    def slots_in_flight(self) -> int:
        """Groups in flight at once."""
        return slots_in_flight(self.slots, self.batch_groups, self.max_age, self.oversample)

    @property
    def extra_groups(self) -> int:
        """Groups generated for a batch beyond those that it trains."""
        return math.ceil(self.batch_groups * (self.oversample - 1))

    @property
    def reserved_engines(self) -> int:
        """Engines that only evaluate."""
        return 0 if self.evaluation is None else self.evaluation.engines or 0

    @property
    def evaluate_every(self) -> int:
        """Steps between two evaluations while the run trains; 0: there are none."""
        return 0 if self.evaluation is None else self.evaluation.every

    @property
    def ledger_section(self) -> Section:
        """The ledger's section, chosen where the job leaves it open."""
        return self.ledger or default_ledger(self.run_dir)

    @property
    def filter_ceiling(self) -> int:
        """Most groups filtered for one step."""
        return self.batch_groups if self.filter.ceiling is None else self.filter.ceiling


def slots_in_flight(slots: int | None, batch_groups: int, max_age: float, oversample: float) -> int:
    """Return how many groups may be in flight at once: as many as can be useful, where the job does not say."""
    return slots or math.ceil(batch_groups * (max_age + oversample))


def algorithm_of(train: Section) -> Algorithm:
    """Return the algorithm that ``[train]`` names; its other half is the trainer's, so it stands in its section."""
    return train.options.get("algorithm", "grpo")

"""What a job wants of each role: how many, of what, with which environment, and what lies together."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from conductor.config import EvaluationConfig, FleetConfig, RoleConfig
from protocols.backend import Resources
from protocols.fleet import Restarts, Strategy
from protocols.messages import WorkerId
from protocols.sections import Section

POLICY, ROLLOUT, EPISODE, REWARD, EVALUATION = "policy", "rollout", "episode", "reward", "evaluation"
ROLES: Mapping[str, str] = {
    POLICY: "train",
    ROLLOUT: "engine",
    EPISODE: "episode",
    REWARD: "reward",
    EVALUATION: "evaluation.reward",
}
"""Role -> where the job says what it runs; in the order in which they are launched, after a user's own."""

OWN_SECTION = "role"
"""Where the adapters of roles of the user's own are looked up."""

FIELDS = ("fleet", "engines", "engine", "train", "episode", "reward", "evaluation")
"""Fields of the job that a plan is made from."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a job wants of one role.

    Attributes:
        environments: Of each instance, layered.
        devices: Of each instance where the job names them; None: it leaves them open.
    """

    name: str
    section: str
    adapter: Section
    instances: int
    resources: Resources
    strategy: Strategy
    per_node: int | None
    devices: tuple[tuple[int, ...], ...] | None
    shares_devices: bool
    environments: tuple[dict[str, str], ...]
    restarts: Restarts

    def worker(self, instance: int) -> WorkerId:
        """Return the name of an instance."""
        return WorkerId(f"{self.name}/{instance}")

    def named(self, instance: int) -> tuple[int, ...]:
        """Return the devices that the job names for an instance."""
        return () if self.devices is None else self.devices[instance]


@dataclass(frozen=True, kw_only=True)
class Team:
    """Roles whose instances are placed together; a role that is alone is a team of its own.

    Attributes:
        wishes: In the order of launching.
        bundles: How many times a part of each is placed together; divides all of their instances.
        share: What the members of a bundle have in common.
    """

    wishes: tuple[Wish, ...]
    bundles: int
    share: Literal["node", "device"] = "node"

    @property
    def name(self) -> str:
        """The name of its first role."""
        return self.wishes[0].name

    @property
    def strategy(self) -> Strategy:
        """How its bundles find nodes."""
        return self.wishes[0].strategy

    @property
    def per_node(self) -> int | None:
        """Bundles on each of its nodes, where the job says so."""
        asked = (wish.per_node * self.bundles // wish.instances for wish in self.wishes if wish.per_node)
        return next(asked, None)

    def bundle(self, number: int) -> str:
        """Return the name of a bundle."""
        return f"{self.name}/{number}"

    def parts(self, bundle: int) -> Iterator[tuple[Wish, range]]:
        """Yield each role with its instances in a bundle."""
        for wish in self.wishes:
            size = wish.instances // self.bundles
            yield wish, range(bundle * size, (bundle + 1) * size)

    def members(self, bundle: int) -> Iterator[tuple[Wish, int]]:
        """Yield role and instance of each member of a bundle."""
        return ((wish, instance) for wish, instances in self.parts(bundle) for instance in instances)

    @cached_property
    def need(self) -> Resources:
        """What one bundle takes; accelerators that are shared within it count once."""
        parts = [(wish.instances // self.bundles, wish.resources) for wish in self.wishes]
        accelerators = [size * one.accelerators for size, one in parts]
        return Resources(
            cpus=sum(size * one.cpus for size, one in parts),
            accelerators=max(accelerators) if self.share == "device" else sum(accelerators),
            memory_gib=sum(size * one.memory_gib for size, one in parts),
        )

    @cached_property
    def open_devices(self) -> int:
        """How many accelerators of one bundle the job does not name."""
        unnamed = tuple(wish for wish in self.wishes if wish.devices is None)
        return Team(wishes=unnamed, bundles=self.bundles, share=self.share).need.accelerators if unnamed else 0

    @cached_property
    def names_devices(self) -> bool:
        """Whether the job names devices of it, so that one bundle may find no place where another does."""
        return any(wish.devices is not None for wish in self.wishes)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What a role runs, and how many of it there are unless ``[fleet.roles]`` says otherwise."""

    section: str
    adapter: Section
    instances: int = 1


def launched(fields: Mapping[str, Any], given: Collection[str]) -> dict[str, Runs]:
    """Return the roles that a job launches, in the order of launching.

    Args:
        fields: ``FIELDS`` of the job.
        given: Sections whose workloads are handed over in code.
    """
    fleet: FleetConfig = fields["fleet"]
    roles = {name: runs for name, config in fleet.roles.items() if name not in ROLES and (runs := _own(config))}
    evaluation: EvaluationConfig | None = fields["evaluation"]
    sections: dict[str, Section | None] = {
        POLICY: fields["train"],
        ROLLOUT: fields["engine"],
        EPISODE: fields["episode"],
        REWARD: fields["reward"],
        EVALUATION: None if evaluation is None else evaluation.reward,
    }
    for name, adapter in sections.items():
        if adapter is not None and ROLES[name] not in given:
            count = fields["engines"] if name == ROLLOUT else 1
            roles[name] = Runs(section=ROLES[name].rpartition(".")[2], adapter=adapter, instances=count)
    return roles


def _own(config: RoleConfig) -> Runs | None:
    if config.command:
        return Runs(section=OWN_SECTION, adapter=Section(kind="command", options={"command": list(config.command)}))
    if config.kind:
        return Runs(section=OWN_SECTION, adapter=Section(kind=config.kind, options=config.options))
    return None


def wish_of(name: str, runs: Runs, fleet: FleetConfig) -> Wish:
    """Return what a job wants of a role that it launches; whether it can be had is another matter."""
    config = fleet.roles.get(name, RoleConfig())
    instances = runs.instances if name == ROLLOUT else config.instances or runs.instances
    return Wish(
        name=name,
        section=runs.section,
        adapter=runs.adapter,
        instances=instances,
        resources=Resources(cpus=config.cpus, accelerators=config.accelerators, memory_gib=config.memory_gib),
        strategy=config.placement,
        per_node=config.per_node,
        devices=config.devices,
        shares_devices=config.share_devices,
        environments=tuple(_environment(fleet, config, instance) for instance in range(instances)),
        restarts=config.restarts,
    )


def _environment(fleet: FleetConfig, config: RoleConfig, instance: int) -> dict[str, str]:
    return {**fleet.environment, **config.environment, **config.instance_environment.get(str(instance), {})}

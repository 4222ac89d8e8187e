"""What is left of each node while workers are placed on it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from conductor.core.planning.wishes import Team, Wish
from protocols.backend import Inventory, Node, Resources
from protocols.messages import WorkerId

_CONTROLLERS_CPUS = 1

_TOO_FEW = 2
"""CPUs of which the controller keeps none: one of two is half of what workers compute on, and it needs a fifth."""


def controllers_cpus(inventory: Inventory) -> tuple[int, ...]:
    """Return the CPUs of the controller's node that are left to it: none where there are too few, or none is known."""
    for node in inventory.nodes:
        if node.name == inventory.controller and len(node.cpus) > _TOO_FEW:
            return node.cpus[:_CONTROLLERS_CPUS]
    return ()


def for_workers(node: Node, inventory: Inventory) -> Resources:
    """Return what a node has for workers: all but the controller's own CPU, where it has one."""
    cpus = min(node.total.cpus, len(node.cpus)) if node.cpus else node.total.cpus
    kept = _CONTROLLERS_CPUS if node.name == inventory.controller and cpus > _TOO_FEW else 0
    return Resources(cpus=cpus - kept, accelerators=node.total.accelerators, memory_gib=node.total.memory_gib)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One worker in its place.

    Attributes:
        wish: Of its role.
        instance: Its number in its role.
        node: Where it runs.
        devices: Its accelerators there.
        bundle: What it is placed with.
    """

    wish: Wish
    instance: int
    node: Node
    devices: tuple[int, ...]
    bundle: str

    @property
    def worker(self) -> WorkerId:
        """Its name."""
        return self.wish.worker(self.instance)


class Room:
    """What is left of one node.

    Args:
        node: Its facts.
        size: What workers may take of it.

    Attributes:
        bundles: How many each team has here.
        refused: Teams that found no place here, and why.
    """

    def __init__(self, node: Node, size: Resources) -> None:
        self.node = node
        self.bundles: Counter[str] = Counter()
        self.refused: dict[str, str] = {}
        self._size = size
        self._cpus = size.cpus
        self._memory_gib = size.memory_gib
        self._holders: dict[int, list[Seat]] = {}
        self._lowest = 0  # every device below it is taken

    def take(self, team: Team, bundle: int) -> list[Seat] | str:
        """Place a bundle here, or say why it finds no place; then nothing has changed."""
        need = team.need
        for what, asked, left in (
            ("CPUs", need.cpus, self._cpus),
            ("GiB of memory", need.memory_gib, self._memory_gib),
        ):
            if asked > left:
                return f"each asks for {asked:g} {what}, of which {self.node.name} has {left:g} left"
        seats = self._seats(team, bundle)
        if isinstance(seats, str):
            return seats
        self.hold(team.name, need, seats)
        return seats

    def hold(self, name: str, need: Resources, seats: Sequence[Seat] = ()) -> None:
        """Take note that a bundle of the team ``name`` is here, whether or not there is room for it."""
        self._cpus -= need.cpus
        self._memory_gib -= need.memory_gib
        self.bundles[name] += 1
        for seat in seats:
            for device in seat.devices:
                self._holders.setdefault(device, []).append(seat)
        while self._lowest in self._holders:
            self._lowest += 1

    def give_back(self, team: Team, seats: list[Seat]) -> None:
        """Take a bundle away that was placed here."""
        need = team.need
        self._cpus += need.cpus
        self._memory_gib += need.memory_gib
        self.bundles[team.name] -= 1
        for seat in seats:
            for device in seat.devices:
                self._holders[device].remove(seat)
                if not self._holders[device]:
                    del self._holders[device]
                    self._lowest = min(self._lowest, device)

    def _seats(self, team: Team, bundle: int) -> list[Seat] | str:
        """Give each member of a bundle its devices: those that the job names, or the lowest that are free."""
        named = {device for wish, instance in team.members(bundle) for device in wish.named(instance)}
        free = list(islice(self._free(named), team.open_devices))
        if len(free) < team.open_devices:
            return f"each asks for {team.open_devices} accelerators, of which {self.node.name} has {len(free)} left"
        seats: list[Seat] = []
        taken = 0
        for wish, instances in team.parts(bundle):
            if team.share == "device":
                taken = 0  # each role begins with the first device
            for instance in instances:
                devices = wish.named(instance)
                if wish.devices is None:
                    devices = tuple(free[taken : taken + wish.resources.accelerators])
                    taken += len(devices)
                seat = Seat(wish=wish, instance=instance, node=self.node, devices=devices, bundle=team.bundle(bundle))
                if wish.devices is not None and (conflict := self._conflict(seat, seats)):
                    return conflict
                seats.append(seat)
        return seats

    def _free(self, named: set[int]) -> Iterator[int]:
        numbers = range(self._lowest, self._size.accelerators)
        return (number for number in numbers if number not in self._holders and number not in named)

    def _conflict(self, seat: Seat, beside: list[Seat]) -> str | None:
        """Say why a worker may not have the devices that the job names for it."""
        for device in seat.devices:
            if device >= self._size.accelerators:
                return f"{seat.worker} names device {device}, and {self.node.name} has {self._size.accelerators}"
            for other in (*self._holders.get(device, ()), *(one for one in beside if device in one.devices)):
                if not (seat.wish.shares_devices and other.wish.shares_devices):
                    return (
                        f"{seat.worker} and {other.worker} share device {device} of {self.node.name} without saying so"
                    )
        return None

"""Every rank holds a part of each parameter, of its gradient and of its optimizer's state (FSDP2).

A layer's parameters are whole only while it computes. Nobody has a copy of another rank's part: where one is lost,
only a checkpoint leads on.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from backends.trainers.torch.gathering import shard_module
from backends.trainers.torch.layout import Layout
from backends.trainers.torch.models import Models
from backends.trainers.torch.ranks import Ranks
from backends.trainers.torch.stepper import Stepper
from protocols.errors import InvariantError, UserError


class Sharded:
    """Parameters are split by rows: rank r of N holds rows ``r x k`` to ``(r + 1) x k``, where ``k`` is an Nth, rounded up.

    Args:
        ranks: Who holds the other parts.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.parts = True
        self._place: tuple[int, int] | None = None
        self._begun: set[FSDPModule] = set()

    def place(self, models: Models, rank: int, world: int) -> bool:
        """Keep this rank's part of each model, the frozen reference included. Asks nobody."""
        if self._place is not None:
            if self._place != (rank, world):
                raise InvariantError(f"the shards are those of rank and world {self._place}, not of {(rank, world)}")
            return False
        for module in dict.fromkeys(one for one in models if one is not None):
            try:
                shard_module(module, rank, world, self.ranks)
            except (ValueError, NotImplementedError, AssertionError) as exc:  # all that torch says of a strange model
                raise UserError(f"train.sharding: torch cannot shard this model: {exc}") from exc
            # one that never computed cannot be reset, as torch has it
            module.register_forward_pre_hook(lambda one, _: self._begun.add(one), prepend=True)
        self._place = rank, world
        return True

    def take_over(self, steppers: Mapping[str, Stepper], source: int) -> None:
        """Keep what is here: no other rank has it."""

    def idle(self, passes: Sequence[int]) -> list[int]:
        """Let all ranks make as many as the one with most: each has a part of every layer that any of them computes."""
        return [round(self.ranks.largest(own)) - own for own in passes]

    def add_up_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Nothing is left to do: each backward pass has added its own up."""

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Add up the squares of all parts."""
        here = torch.nn.utils.get_total_norm([_local(gradient) for gradient in gradients])
        return self.ranks.add_up_tensor(here.square()).sqrt()

    def lent(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """There is no whole one to lend: gather copies."""
        return self.copies(tensors)

    @torch.no_grad()
    def copies(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather one after the other: beside what the first rank keeps, each rank holds one whole tensor at a time."""
        made: dict[object, Tensor] = {}
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            # by the storage, which has room for padding: an empty part has no address of its own
            place = _local(tensor).untyped_storage().data_ptr() or name, tensor.shape
            if place not in made:
                whole = self._whole(tensor)
                made[place] = whole.to("cpu") if self.ranks.rank == 0 else whole.new_empty(0)
            found[name] = made[place]
        return found if self.ranks.rank == 0 else {}

    @torch.no_grad()
    def fill(self, target: Tensor, value: Tensor) -> None:
        """Copy this rank's rows, or all of what is not split."""
        _local(target).copy_(value[self._rows(value)] if isinstance(target, DTensor) else value)

    def moment(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Copy this rank's rows; a count of steps is every rank's."""
        if value.shape != parameter.shape:
            return value.to(parameter.device, copy=True)
        made = torch.zeros_like(parameter, requires_grad=False)
        self.fill(made, value)
        return made

    def forget_passes(self) -> None:
        """Split again what was whole for a pass, and forget its gradients."""
        for module in self._begun:
            module.reset_iter_state()

    def _whole(self, tensor: Tensor) -> Tensor:
        """Return a tensor apart from the model's."""
        if not isinstance(tensor, DTensor):
            return tensor.clone()
        here, rows = _local(tensor), len(tensor)
        share = -(-rows // self.ranks.world)
        padded = here.new_zeros((share, *here.shape[1:]))
        padded[: len(here)] = here
        whole = here.new_empty((share * self.ranks.world, *here.shape[1:]))
        self.ranks.gather_tensor(whole, padded)
        return whole if len(whole) == rows else whole[:rows].clone()

    def _rows(self, whole: Tensor) -> slice:
        share = -(-len(whole) // self.ranks.world)
        return slice(share * self.ranks.rank, share * (self.ranks.rank + 1))


_: type[Layout] = Sharded


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

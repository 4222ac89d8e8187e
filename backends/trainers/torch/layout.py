"""How what is trained lies on the ranks: the whole of it on each, or a part."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from backends.trainers.torch.models import Models
from backends.trainers.torch.ranks import Ranks
from backends.trainers.torch.stepper import Stepper


class Layout(Protocol):
    """One rank's view of parameters, gradients and optimizer states.

    Unless ``parts``, a rank may call everything by itself but ``add_up_gradients`` and ``take_over``.

    Attributes:
        ranks: Who else trains the same policy.
        parts: Whether each rank holds a part only, which no other has. Then every method that reads a model or has it
            compute is called on all ranks at once.
    """

    @property
    def ranks(self) -> Ranks: ...

    @property
    def parts(self) -> bool: ...

    def place(self, models: Models, rank: int, world: int) -> bool:
        """Bring models into this layout, in place; returns whether their parameters are other tensors now.

        Raises:
            UserError: They cannot be laid out so.
            InvariantError: They are laid out for another rank already.
        """
        ...

    def take_over(self, steppers: Mapping[str, Stepper], source: int) -> None:
        """Have what ``source`` has, where it is the same on all ranks. All call it at once."""
        ...

    def idle(self, passes: Sequence[int]) -> list[int]:
        """Return how many passes this rank is to make beyond its own, for each minibatch, so that others can make theirs.

        Args:
            passes: Its own of each minibatch.
        """
        ...

    def add_up_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace the gradients with their sums over all ranks."""
        ...

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the global norm of gradients that were added up."""
        ...

    def lent(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors, which may be the model's own; on ranks after the first, where each has a part, none."""
        ...

    def copies(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the same in the host's memory, apart from the model's; names of one tensor stay names of one."""
        ...

    def fill(self, target: Tensor, value: Tensor) -> None:
        """Put into a tensor of a model what this rank holds of a whole one."""
        ...

    def moment(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Return a new tensor of a parameter's optimizer state: what this rank holds of ``value``, which has its shape or none."""
        ...

    def forget_passes(self) -> None:
        """Make good what a pass that was cut off in the middle has left."""
        ...

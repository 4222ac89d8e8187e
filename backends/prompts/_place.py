"""Where a prompt source stands, and whose order that is. Every source that ships counts in the same way."""

from anyio.lowlevel import checkpoint

from protocols.errors import UserError
from protocols.prompts import SourceState


class Place:
    """The ``state`` and ``restore`` of a source whose order depends on the run's seed.

    Args:
        seed: Seed of the run.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._position = 0

    async def state(self) -> SourceState:
        """Return where the source stands."""
        await checkpoint()
        return SourceState(position=self._position, seed=self._seed)

    async def restore(self, state: SourceState) -> None:
        """Continue from ``state``; see ``PromptSourcePort.restore``."""
        await checkpoint()
        if state.seed != self._seed:
            mend = f"set seed = {state.seed} to go on, or begin a new run"
            raise UserError(f"seed = {self._seed}: the prompts were drawn with seed {state.seed}; {mend}")
        self._position = state.position

"""A prompt source whose prompts say their own position."""

from collections.abc import Collection

from anyio.lowlevel import checkpoint

from protocols.errors import BadPrompt, UserError
from protocols.prompts import Prompt, PromptSourcePort, SourceState, TextPrompt


class ScriptedPrompts:
    """Gives ``count`` prompts ``p0``, ``p1``, and so on.

    Args:
        count: Prompts of one epoch.
        epochs: Passes over them; None never ends.
        unreadable: Positions whose draw raises ``BadPrompt``.
        seed: Stands in the state and in the fingerprint, and changes nothing else.
    """

    def __init__(self, count: int, *, epochs: int | None = 1, unreadable: Collection[int] = (), seed: int = 0) -> None:
        self._count = count
        self._epochs = epochs
        self._unreadable = frozenset(unreadable)
        self._seed = seed
        self._position = 0

    async def draw(self) -> Prompt | None:
        """Return the next prompt; positions run on over epochs."""
        await checkpoint()
        position = self._position
        if self._count == 0 or (self._epochs is not None and position >= self._epochs * self._count):
            return None
        self._position += 1
        if position in self._unreadable:
            raise BadPrompt(f"prompt {position} is unreadable")
        return Prompt(position=position, epoch=position // self._count, content=TextPrompt(text=f"p{position}"))

    async def state(self) -> SourceState:
        """Return the position of the next prompt."""
        await checkpoint()
        return SourceState(position=self._position, seed=self._seed)

    async def restore(self, state: SourceState) -> None:
        """Continue from a state of a source with the same seed."""
        await checkpoint()
        if state.seed != self._seed:
            mend = f"set seed = {state.seed} to go on, or begin a new run"
            raise UserError(f"seed = {self._seed}: the prompts were drawn with seed {state.seed}; {mend}")
        self._position = state.position

    async def fingerprint(self) -> str:
        """Return the arguments of the constructor that order depends on."""
        await checkpoint()
        return f"scripted/{self._count}/{self._seed}"

    async def epoch_length(self) -> int | None:
        """Return ``count``."""
        await checkpoint()
        return self._count


_: type[PromptSourcePort] = ScriptedPrompts

"""Prompts from records that are read by number: their order, and where a source stands. Files and tables share it."""

import hashlib
import random
from collections.abc import Mapping
from typing import Any, Protocol

import anyio.to_thread
from anyio.lowlevel import checkpoint

from backends.prompts._content import prompt_of
from backends.prompts._place import Place
from protocols.errors import BadPrompt
from protocols.prompts import Prompt, PromptSourcePort


class Records(Protocol):
    """At least one record. Read in threads, one at a time."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Mapping[str, Any]:
        """Return a record.

        Raises:
            BadPrompt: It is unreadable.
        """
        ...

    def where(self, index: int) -> str:
        """Return where people find a record."""
        ...

    def digest(self) -> str:
        """Return a digest of all records."""
        ...


class RecordPrompts(Place):
    """Draws records in their order, or in one that seed and epoch decide.

    Args:
        records: At least one.
        prompt_field: The field that the model sees.
        epochs: Passes over the records; None goes on for ever.
        shuffle: Draw each epoch in an order of its own.
        seed: Seed of the run.
    """

    def __init__(self, records: Records, *, prompt_field: str, epochs: int | None, shuffle: bool, seed: int) -> None:
        super().__init__(seed)
        self._records = records
        self._prompt_field = prompt_field
        self._epochs = epochs
        self._shuffle = shuffle
        self._shuffled: tuple[int, list[int]] = (-1, [])

    async def draw(self) -> Prompt | None:
        """Return the next prompt; see ``PromptSourcePort.draw``.

        Raises:
            BadPrompt: The record is none.
        """
        await checkpoint()
        if self._epochs is not None and self._position // len(self._records) >= self._epochs:
            return None
        try:
            prompt = await anyio.to_thread.run_sync(self._prompt, self._position)
        except BadPrompt:
            self._position += 1
            raise
        self._position += 1
        return prompt

    def _prompt(self, position: int) -> Prompt:
        epoch, index = divmod(position, len(self._records))
        if self._shuffle:
            index = self._order(epoch)[index]
        try:
            return prompt_of(self._records.read(index), self._prompt_field, position=position, epoch=epoch)
        except BadPrompt as exc:
            raise BadPrompt(f"{self._records.where(index)}: {exc.message}") from exc

    def _order(self, epoch: int) -> list[int]:
        if self._shuffled[0] != epoch:
            order = list(range(len(self._records)))
            random.Random(f"{self._seed}/prompts/{epoch}").shuffle(order)
            self._shuffled = (epoch, order)
        return self._shuffled[1]

    async def fingerprint(self) -> str:
        """Return a digest of the records, the prompt field and what the order depends on."""
        await checkpoint()
        digest = await anyio.to_thread.run_sync(self._records.digest)
        order = f"seed {self._seed}" if self._shuffle else "as they stand"
        return hashlib.sha256(f"{digest}/{self._prompt_field}/{order}".encode()).hexdigest()

    async def epoch_length(self) -> int | None:
        """Return the number of records."""
        await checkpoint()
        return len(self._records)


_: type[PromptSourcePort] = RecordPrompts

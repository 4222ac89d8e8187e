"""Prompts from a Python function, finite or without end.

::

    def prompt(index: int, seed: int):
        return {"prompt": "2 + 2 =", "answer": 4}

It is asked for one prompt at a time and must depend on its two arguments alone: then a resumed run sees
the same prompts. It returns text, a list of chat messages, a list of token ids, or a dict with one of
these as ``prompt`` and further fields for the reward; None when there are no more.
"""

import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio.to_thread
import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Meta

from backends._functions import Caught, FunctionNotFound, find_function, user_error
from backends.prompts._content import prompt_of
from backends.prompts._place import Place
from protocols.adapters import Host
from protocols.errors import BadPrompt, Problem, UserError
from protocols.messages import Message
from protocols.prompts import Prompt, PromptSourcePort, SourceState
from protocols.sections import Site

PromptFunction = Callable[[int, int], Any]
"""``(index, seed)`` -> a prompt, or None for the end."""


_COMPARED = 16  # prompts that the fingerprint looks at


class Config(Message, frozen=True, kw_only=True):
    """Options of ``[prompts] kind = "function"``.

    Attributes:
        function: ``module:function`` or ``path.py:function``.
        epoch_length: Prompts of one epoch: the function is asked for the indices below it, over and over.
            None: all prompts are one epoch, which lasts until the function returns None.
        epochs: Passes over ``epoch_length`` prompts; None goes on for ever.
    """

    function: str
    epoch_length: Annotated[int, Meta(ge=1)] | None = None
    epochs: Annotated[int, Meta(ge=1)] | None = None


class FunctionPrompts(Place):
    """Asks a user's function for one prompt after the other, in a thread.

    Args:
        function: The user's.
        cfg: How to count.
        seed: Seed of the run.
    """

    def __init__(self, function: PromptFunction, cfg: Config, seed: int) -> None:
        super().__init__(seed)
        self._function = function
        self._cfg = cfg
        self._ended = False

    async def draw(self) -> Prompt | None:
        """Return the next prompt; see ``PromptSourcePort.draw``.

        Raises:
            BadPrompt: The function raised, or returned what is no prompt.
        """
        await checkpoint()
        if self._ended or (self._cfg.epochs is not None and self._place(self._position)[0] >= self._cfg.epochs):
            return None
        try:
            prompt = await anyio.to_thread.run_sync(self._ask, self._position)
        except BadPrompt:
            self._position += 1
            raise
        if prompt is None:
            self._ended = True
        else:
            self._position += 1
        return prompt

    def _place(self, position: int) -> tuple[int, int]:
        return divmod(position, self._cfg.epoch_length) if self._cfg.epoch_length else (0, position)

    def _ask(self, position: int) -> Prompt | None:
        epoch, index = self._place(position)
        try:
            value = _call(self._function, index, self._seed)
            if value is None:
                return None
            record = value if isinstance(value, Mapping) else {"prompt": value}
            return prompt_of(record, "prompt", position=position, epoch=epoch)
        except BadPrompt as exc:
            raise BadPrompt(f"{self._cfg.function}({index}, {self._seed}): {exc.message}") from exc

    async def restore(self, state: SourceState) -> None:
        """Continue from ``state``; see ``PromptSourcePort.restore``."""
        await super().restore(state)
        self._ended = False

    async def fingerprint(self) -> str:
        """Return a digest of the first prompts: code cannot be compared, what it gives can."""
        await checkpoint()
        return await anyio.to_thread.run_sync(self._digest)

    def _digest(self) -> str:
        digest = hashlib.sha256(f"{self._cfg.epoch_length}/{self._seed}".encode())
        for position in range(_COMPARED):
            try:
                digest.update(msgspec.msgpack.encode(self._ask(position)))
            except BadPrompt:
                digest.update(b"bad")
        return digest.hexdigest()

    async def epoch_length(self) -> int | None:
        """Return ``epoch_length`` of the job."""
        await checkpoint()
        return self._cfg.epoch_length


def _call(function: PromptFunction, index: int, seed: int) -> Any:
    value: Any = None
    with Caught() as caught:
        value = function(index, seed)
    if caught.error is not None:
        raise BadPrompt(f"it raised {user_error(caught.error)}") from caught.error
    return value


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what is wrong: the function cannot be imported, or epochs of unknown length are counted."""
    problems: list[Problem] = []
    try:
        find_function(cfg.function, site.job_dir)
    except FunctionNotFound as exc:
        problems.append(exc.problem("prompts.function", cfg.function))
    if cfg.epochs is not None and cfg.epoch_length is None:
        why = "nobody knows how long an epoch of a function is"
        mend = "set prompts.epoch_length, or leave prompts.epochs out"
        problems.append(Problem(field="prompts.epochs", value=str(cfg.epochs), why=why, mend=mend))
    return problems


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[FunctionPrompts]:  # noqa: A001 - the adapters' common name
    """Import the function, off the loop.

    Raises:
        UserError: It cannot be imported.
    """
    try:
        function = await anyio.to_thread.run_sync(find_function, cfg.function, host.site.job_dir)
    except FunctionNotFound as exc:
        raise UserError(f"prompts.function = {cfg.function!r}: {exc}") from exc
    yield FunctionPrompts(function, cfg, host.site.seed)


_: type[PromptSourcePort] = FunctionPrompts

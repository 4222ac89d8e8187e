"""Prompts from a file of JSON lines.

Each line is an object. One field is the prompt: text, a list of chat messages ``{role, content}`` or a
list of token ids. All other fields are handed to the reward function by name. Blank lines do not count.
"""

import hashlib
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Meta

from backends.prompts._content import prompt_of
from backends.prompts._lines import Lines
from protocols.adapters import Host
from protocols.errors import BadPrompt, Problem, UserError
from protocols.messages import Message
from protocols.prompts import Prompt, PromptSourcePort, SourceState
from protocols.sections import Site

_SHOWN = 3  # bad lines that are reported one by one


class Config(Message, frozen=True, kw_only=True):
    """Options of ``[prompts] kind = "jsonl"``.

    Attributes:
        path: The file; a relative path starts from the job's folder.
        epochs: Passes over the file; None goes on for ever.
        shuffle: Draw each epoch in an order of its own, which the run's seed decides.
        prompt_field: The field that the model sees.
    """

    path: str
    epochs: Annotated[int, Meta(ge=1)] | None = None
    shuffle: bool = False
    prompt_field: str = "prompt"


class JsonlPrompts:
    """Draws the lines of a file, in its order or in one that seed and epoch decide.

    Args:
        lines: The file, at least one line.
        cfg: How to draw.
        seed: Seed of the run.
    """

    def __init__(self, lines: Lines, cfg: Config, seed: int) -> None:
        self._lines = lines
        self._cfg = cfg
        self._seed = seed
        self._position = 0
        self._shuffled: tuple[int, list[int]] = (-1, [])

    async def draw(self) -> Prompt | None:
        """Return the next prompt; see ``PromptSourcePort.draw``."""
        await checkpoint()
        epoch = self._position // len(self._lines)
        if self._cfg.epochs is not None and epoch >= self._cfg.epochs:
            return None
        number, data = await anyio.to_thread.run_sync(self._read, self._position)
        position, self._position = self._position, self._position + 1
        try:
            return prompt_of(parse_line(data), self._cfg.prompt_field, position=position, epoch=epoch)
        except BadPrompt as exc:
            raise BadPrompt(f"{self._cfg.path}, line {number}: {exc.message}") from exc

    def _read(self, position: int) -> tuple[int, bytes]:
        epoch, index = divmod(position, len(self._lines))
        if self._cfg.shuffle:
            index = self._order(epoch)[index]
        return self._lines.read(index)

    def _order(self, epoch: int) -> list[int]:
        if self._shuffled[0] != epoch:
            order = list(range(len(self._lines)))
            random.Random(f"{self._seed}/prompts/{epoch}").shuffle(order)
            self._shuffled = (epoch, order)
        return self._shuffled[1]

    async def state(self) -> SourceState:
        """Return where the source stands."""
        await checkpoint()
        return SourceState(position=self._position, seed=self._seed)

    async def restore(self, state: SourceState) -> None:
        """Continue from ``state``; see ``PromptSourcePort.restore``."""
        await checkpoint()
        if state.seed != self._seed:
            raise UserError(f"the prompts were drawn with seed {state.seed}, the job has seed {self._seed}")
        self._position = state.position

    async def fingerprint(self) -> str:
        """Return a digest of the file, the prompt field and what the order depends on."""
        await checkpoint()
        order = f"seed {self._seed}" if self._cfg.shuffle else "as in the file"
        named = f"{self._lines.digest}/{self._cfg.prompt_field}/{order}"
        return hashlib.sha256(named.encode()).hexdigest()

    async def epoch_length(self) -> int | None:
        """Return the number of lines."""
        await checkpoint()
        return len(self._lines)


def parse_line(data: bytes) -> dict[str, object]:
    """Parse one line.

    Raises:
        BadPrompt: It is no JSON object.
    """
    try:
        return msgspec.json.decode(data, type=dict[str, object])
    except (ValueError, RecursionError) as exc:
        raise BadPrompt(f"it is no JSON object: {exc}") from exc


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what is wrong with the file: missing, empty, or lines that are no prompts."""
    try:
        with _path(cfg, site).open("rb") as file:
            bad = _bad_lines(cfg, Lines(file))
    except OSError as exc:
        why, mend = f"the file cannot be read: {exc}", "give the path of a file of JSON lines"
        return [Problem(field="prompts.path", value=repr(cfg.path), why=why, mend=mend)]
    mend = f"give each line an object whose '{cfg.prompt_field}' is text, chat messages or token ids"
    return [Problem(field="prompts.path", value=repr(cfg.path), why=why, mend=mend) for why in bad]


def _bad_lines(cfg: Config, lines: Lines) -> list[str]:
    bad: list[str] = [] if len(lines) else ["the file has no lines"]
    for index in range(len(lines)):
        number, data = lines.read(index)
        try:
            prompt_of(parse_line(data), cfg.prompt_field, position=0, epoch=0)
        except BadPrompt as exc:
            bad.append(f"line {number}: {exc.message}")
    if len(bad) > _SHOWN:
        bad[_SHOWN:] = [f"{len(bad) - _SHOWN} more lines are bad"]
    return bad


def _path(cfg: Config, site: Site) -> Path:
    return Path(site.job_dir) / Path(cfg.path).expanduser()


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[JsonlPrompts]:  # noqa: A001 - the adapters' common name
    """Open the file and find its lines, off the loop.

    Raises:
        UserError: The file cannot be read, or it is empty.
    """
    async with AsyncExitStack() as stack:
        try:
            file = await stack.enter_async_context(await anyio.open_file(_path(cfg, host.site), "rb"))
            lines = await anyio.to_thread.run_sync(Lines, file.wrapped)
        except OSError as exc:
            raise UserError(f"prompts.path = {cfg.path!r} cannot be read: {exc}") from exc
        if len(lines) == 0:
            raise UserError(f"prompts.path = {cfg.path!r} has no lines")
        yield JsonlPrompts(lines, cfg, host.site.seed)


_: type[PromptSourcePort] = JsonlPrompts

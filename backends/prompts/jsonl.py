"""Prompts from a file of JSON lines.

Each line is an object. One field is the prompt: text, a list of chat messages ``{role, content}`` or a
list of token ids. All other fields are handed to the reward function by name. Blank lines do not count.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
import msgspec
from msgspec import Meta

from backends.prompts._content import prompt_of
from backends.prompts._lines import Lines
from backends.prompts._records import RecordPrompts, Records
from protocols.adapters import Host
from protocols.errors import BadPrompt, Problem, UserError
from protocols.messages import Message
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


class JsonlRecords:
    """The lines of a file as records.

    Args:
        lines: At least one.
        path: As the job names the file.
    """

    def __init__(self, lines: Lines, path: str) -> None:
        self._lines = lines
        self._path = path

    def __len__(self) -> int:
        return len(self._lines)

    def read(self, index: int) -> dict[str, object]:
        """Parse a line; see ``Records.read``."""
        return parse_line(self._lines.read(index)[1])

    def where(self, index: int) -> str:
        """Return the file and the number of the line."""
        return f"{self._path}, line {self._lines.read(index)[0]}"

    def digest(self) -> str:
        """Return the file's own digest."""
        return self._lines.digest


_: type[Records] = JsonlRecords


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
async def open(cfg: Config, host: Host) -> AsyncGenerator[RecordPrompts]:  # noqa: A001 - the adapters' common name
    """Open the file and find its lines, off the loop.

    Raises:
        UserError: The file cannot be read, or it is empty.
    """
    async with AsyncExitStack() as stack:
        try:
            file = await stack.enter_async_context(await anyio.open_file(_path(cfg, host.site), "rb"))
            lines = await anyio.to_thread.run_sync(Lines, file.wrapped)
        except OSError as exc:
            raise UserError(f"prompts.path = {cfg.path!r}: {exc}; give the path of a file of JSON lines") from exc
        if len(lines) == 0:
            raise UserError(f"prompts.path = {cfg.path!r}: the file has no lines; write one JSON object a line")
        yield RecordPrompts(
            JsonlRecords(lines, cfg.path),
            prompt_field=cfg.prompt_field,
            epochs=cfg.epochs,
            shuffle=cfg.shuffle,
            seed=host.site.seed,
        )

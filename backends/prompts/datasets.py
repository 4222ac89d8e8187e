"""Prompts from Hugging Face datasets: a local file, a folder, or a dataset by its name.

Each row is a record. One column is the prompt: text, a list of chat messages ``{role, content}`` or a list of token
ids. All other columns are handed to the reward function by name. A name is looked up in the local cache or
downloaded when the run starts; with ``HF_HUB_OFFLINE=1`` the cache alone is asked.
"""

import difflib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio.to_thread
from msgspec import Meta

from backends._extras import find_missing
from backends.prompts._content import prompt_of
from backends.prompts._records import RecordPrompts
from protocols.adapters import Host
from protocols.errors import BadPrompt, Problem, UserError
from protocols.messages import Message
from protocols.sections import Site

if TYPE_CHECKING:
    from backends._datasets import Table


class Config(Message, frozen=True, kw_only=True):
    """Options of ``[prompts] kind = "datasets"``.

    Attributes:
        path: A file (JSON, JSON lines, CSV, TSV, Parquet, Arrow), a folder, or a Hugging Face name (``org/data``).
            What is relative starts from the job's folder.
        subset: Configuration of the dataset, where it has several.
        split: Which part; slices like ``train[:1000]`` work, except for what ``save_to_disk`` wrote.
        prompt_field: The column that the model sees.
        epochs: Passes over the rows; None goes on for ever.
        shuffle: Draw each epoch in an order of its own, which the run's seed decides.
    """

    path: str
    subset: str | None = None
    split: str = "train"
    prompt_field: str = "prompt"
    epochs: Annotated[int, Meta(ge=1)] | None = None
    shuffle: bool = False


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what is wrong with local data; what is named is not downloaded to be looked at."""
    if missing := find_missing("datasets", field="prompts.kind", kind="datasets", extra="datasets"):
        return missing
    local = _local(cfg, site)
    if not local.exists():
        return [] if _may_be_a_name(cfg) else [_path_problem(cfg, f"there is no {local}")]
    try:
        table = _load(cfg, site)
    except UserError as exc:
        return [_path_problem(cfg, exc.message)]
    return _column_problems(cfg, table) or _row_problems(cfg, table)


def _column_problems(cfg: Config, table: "Table") -> list[Problem]:
    if cfg.prompt_field in table.columns:
        return []
    near = difflib.get_close_matches(cfg.prompt_field, table.columns, n=1)
    mend = f"did you mean '{near[0]}'?" if near else f"the columns are {', '.join(table.columns)}"
    value, why = repr(cfg.prompt_field), f"{cfg.path} has no such column"
    return [Problem(field="prompts.prompt_field", value=value, why=why, mend=mend)]


def _row_problems(cfg: Config, table: "Table") -> list[Problem]:
    try:
        prompt_of(table.read(0), cfg.prompt_field, position=0, epoch=0)
    except BadPrompt as exc:
        return [_path_problem(cfg, f"row 0: {exc.message}")]
    return []


def _path_problem(cfg: Config, why: str) -> Problem:
    mend = "name a file, a folder or a Hugging Face dataset, and a split that it has"
    return Problem(field="prompts.path", value=repr(cfg.path), why=why, mend=mend)


def _local(cfg: Config, site: Site) -> Path:
    return Path(site.job_dir) / Path(cfg.path).expanduser()


def _may_be_a_name(cfg: Config) -> bool:
    return not cfg.path.startswith(("/", ".", "~")) and cfg.path.count("/") <= 1 and not Path(cfg.path).suffix


def _load(cfg: Config, site: Site) -> "Table":
    """Load the table.

    Raises:
        UserError: It cannot be loaded, or it has no rows.
    """
    from backends._datasets import load_table  # noqa: PLC0415 - heavy

    try:
        table = load_table(cfg.path, _local(cfg, site), cfg.subset, cfg.split)
    except Exception as exc:  # datasets, pyarrow and the hub have each errors of their own
        why = " ".join(str(exc).split())
        raise UserError(f"split '{cfg.split}' cannot be loaded: {type(exc).__name__}: {why}") from exc
    if len(table) == 0:
        raise UserError(f"split '{cfg.split}' has no rows")
    return table


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[RecordPrompts]:  # noqa: A001 - the adapters' common name
    """Load the rows, off the loop; they stay on disk.

    Raises:
        UserError: They cannot be loaded, or there are none.
    """
    try:
        table = await anyio.to_thread.run_sync(_load, cfg, host.site)
    except UserError as exc:
        raise UserError(f"prompts.path = {cfg.path!r}: {exc.message}") from exc
    yield RecordPrompts(
        table, prompt_field=cfg.prompt_field, epochs=cfg.epochs, shuffle=cfg.shuffle, seed=host.site.seed
    )

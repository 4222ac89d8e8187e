"""``conductor init``: a job and its task to begin with."""

from importlib.resources import files
from pathlib import Path

import click

from protocols.errors import UserError

_FILES = ("job.toml", "task.py")


def write_starter(folder: str) -> int:
    """Write a commented job and its prompts and reward, which run as they are; returns the exit code.

    Args:
        folder: Where; made where it is not there.

    Raises:
        UserError: One of the files is there already, or cannot be written.
    """
    target, starter = Path(folder), files("conductor.cli.starter")
    there = [str(target / name) for name in _FILES if (target / name).exists()]
    if there:
        raise UserError(f"{' and '.join(there)} would be written over; name another folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (target / name).write_text((starter / name).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as exc:
        raise UserError(f"{folder} cannot be written to: {exc}; name another folder") from exc
    click.echo(f"wrote {' and '.join(str(target / name) for name in _FILES)}")
    click.echo(f"next: conductor run {target / 'job.toml'}")
    return 0

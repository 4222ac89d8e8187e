"""From a job file to a ``RunConfig``, or to everything that is wrong with it."""

import datetime as dt
import itertools
import os
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from conductor.config import RunConfig
from conductor.decoding import decode_fields
from conductor.jobfile import JOB_FILE, holds_run
from conductor.validation import SECTIONS, find_problems_between
from conductor.wording import noun
from protocols.errors import ConfigError, Problem


def load_config(
    path: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    run_dir: str | None = None,
    given: Collection[str] = (),
    resume: bool = False,
) -> RunConfig:
    """Read a job file and check it.

    Args:
        path: A TOML, YAML or JSON file. Relative paths in it start from its own folder.
        overrides: ``a.b=value`` each, laid over the file in order. A value that reads as TOML (``1e-3``,
            ``true``, ``[1, 2]``, ``"text"``) is that value, anything else is text.
        run_dir: Where the run writes, from the working folder; None: what the file says, or else a new
            folder in ``runs``. It is not created here.
        given: Sections whose workloads will be handed over in code and need no adapter.
        resume: Whether the run may go on with what its folder holds.

    Raises:
        ConfigError: Something is wrong; it holds every problem.
    """
    fields, problems = load_fields(path, overrides=overrides, run_dir=run_dir, given=given, resume=resume)
    if problems:
        raise ConfigError(problems)
    return RunConfig(**fields)


def load_fields(
    path: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    run_dir: str | None = None,
    given: Collection[str] = (),
    resume: bool = False,
) -> tuple[dict[str, Any], list[Problem]]:
    """Do as ``load_config``, but return the fields that are right by themselves, and everything that is wrong.

    Raises:
        ConfigError: The file cannot be read.
    """
    raw = read_file(Path(path))
    problems = [problem for override in overrides if (problem := _lay_over(raw, override)) is not None]
    fields, wrong = decode_fields(RunConfig, raw)
    _settle_folders(fields, Path(path), run_dir)
    return fields, [*problems, *wrong, *find_problems_between(fields, given=given, resume=resume)]


def read_job(run_dir: str | os.PathLike[str]) -> RunConfig:
    """Read the job that a run's folder keeps. Nothing but its fields is checked.

    Raises:
        ConfigError: No run has begun in the folder, or the job there was changed for the worse.
    """
    folder = Path(run_dir).resolve()
    if not holds_run(folder):
        why, mend = "no run has begun there", "name the folder of a run; conductor run begins one"
        raise ConfigError([Problem(field="RUN_DIR", value=repr(str(run_dir)), why=why, mend=mend)])
    fields, problems = decode_fields(RunConfig, read_file(folder / JOB_FILE))
    _settle_folders(fields, folder / JOB_FILE, str(folder))
    if problems:
        raise ConfigError(problems)
    return RunConfig(**fields)


def read_file(path: Path, *, field: str = "job") -> dict[str, Any]:
    """Read a table from a TOML, YAML or JSON file.

    Args:
        path: The file.
        field: What it is called in the problems.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    parse = {".toml": _parse_toml, ".yaml": _parse_yaml, ".yml": _parse_yaml, ".json": msgspec.json.decode}.get(
        path.suffix.lower()
    )
    if parse is None:
        raise _unreadable(
            field, path, "is neither TOML nor YAML by its name", "name a file that ends in .toml, .yaml, .yml or .json"
        )
    try:
        raw = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise _unreadable(field, path, "there is no such file", "check the path") from exc
    except OSError as exc:
        raise _unreadable(field, path, f"cannot be read: {exc.strerror}", "name a file that you may read") from exc
    except (tomllib.TOMLDecodeError, msgspec.DecodeError, UnicodeDecodeError) as exc:
        why = f"cannot be understood: {' '.join(str(exc).split())}"
        raise _unreadable(field, path, why, "correct it there") from exc
    if not isinstance(raw, dict):
        raise _unreadable(field, path, noun(raw), "give a table of fields")
    return cast("dict[str, Any]", raw)


def _parse_toml(text: str) -> Any:
    return tomllib.loads(text)


def _parse_yaml(text: str) -> Any:
    return msgspec.yaml.decode(text) if text.strip() else {}


def _unreadable(field: str, path: Path, why: str, mend: str) -> ConfigError:
    return ConfigError([Problem(field=field, value=repr(str(path)), why=why, mend=mend)])


def _lay_over(raw: dict[str, Any], override: str) -> Problem | None:
    name, equals, text = override.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not equals or not all(keys):
        return Problem(field="--set", value=repr(override), why="is no 'name=value'", mend="write --set train.lr=1e-3")
    table = raw
    for depth, key in enumerate(keys[:-1]):
        inner = table.setdefault(key, {})
        if isinstance(inner, str) and depth == 0 and key in SECTIONS:  # the short form of a section
            inner = table[key] = {"kind": inner}
        if not isinstance(inner, dict):
            why = f"'{'.'.join(keys[: depth + 1])}' {noun(inner)}, not a table"
            return Problem(field="--set", value=repr(override), why=why, mend="set it whole")
        table = cast("dict[str, Any]", inner)
    table[keys[-1]] = _read_value(text.strip())
    return None


def _read_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _settle_folders(fields: dict[str, Any], path: Path, run_dir: str | None) -> None:
    """Make the folders absolute, and choose one for the run where none is named."""
    job_dir = path.absolute().parent / (fields.get("job_dir") or "")
    fields["job_dir"] = str(job_dir)
    if run_dir is None and fields.get("run_dir") is not None:
        run_dir = str(job_dir / fields["run_dir"])
    if run_dir is None and "run_dir" in fields and "name" in fields:
        run_dir = str(_new_run_dir(fields["name"]))
    if run_dir is not None:
        fields["run_dir"] = str(Path(run_dir).resolve())


def _new_run_dir(name: str) -> Path:
    first = Path("runs") / f"{name}-{_stamp()}"
    others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([first], others) if not folder.exists())


def _stamp() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")

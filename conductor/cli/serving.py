"""``conductor engine``: the torch engine behind the interface of a server that people run."""

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from conductor.cli.signals import under_signals
from conductor.loading import load_fields
from protocols.adapters import load_object
from protocols.errors import ConductorError, ConfigError, UserError
from protocols.faults import parse_plan
from protocols.sections import Section

_CONFIG = "backends.engines._serve.program:ServerConfig"
_OPEN = "backends.engines._serve.program:open_server"
_JOBS = frozenset({".toml", ".yaml", ".yml", ".json"})


@click.command(name="engine")
@click.argument("model")
@click.option("--protocol", type=click.Choice(["vllm", "sglang"]), required=True, help="Whose interface it has.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default=True, help="Port to listen on; 0: any that is free.")
@click.option("--name", default="policy", show_default=True, help="What clients call the model.")
@click.option("--slots", type=click.IntRange(min=1), help="Samples decoded at once.")
@click.option("--context", type=click.IntRange(min=1), help="Most tokens of prompt and completion.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads that torch computes with.")
@click.option("--seed", default=0, show_default=True, help="Of random weights, where a job's model has them.")
@click.option("--faults", default="", metavar="PLAN", help="Calls that go wrong: crash@Engine.generate#3.")
@click.option("--unheld", default=0, metavar="N", help="Accept the N-th weight update, and do not hold it.")
def engine(model: str, **asked: Any) -> None:
    """Serve MODEL, a folder, a Hugging Face name, or a job file that has one, with torch over HTTP.

    The first line of standard output is the server's URL. It runs until SIGINT or SIGTERM.
    """
    try:
        sys.exit(_serve(model, asked))
    except ConductorError as exc:
        click.echo(exc.message, err=True)
        sys.exit(exc.exit_code)


def _serve(model: str, asked: dict[str, Any]) -> int:
    section, job_dir = _model(model)
    options = ("slots", "context", "threads")
    try:
        plan = parse_plan(asked["faults"])
    except ValueError as exc:
        raise UserError(f"--faults: {exc}; see docs/engines.md") from exc
    fields = {name: asked[name] for name in ("protocol", "host", "port", "name", "unheld")}
    decoding = {name: asked[name] for name in options if asked[name] is not None}
    config, open_server = _loaded()
    cfg = msgspec.convert({**fields, "engine": decoding, "faults": msgspec.to_builtins(plan)}, config)
    server = partial(open_server, cfg, section, job_dir=job_dir, seed=asked["seed"])
    ending = anyio.run(under_signals, partial(_run, server), _say)
    if ending.error is not None:
        raise ending.error
    return 0 if ending.stopped_by is None else 128 + ending.stopped_by


def _loaded() -> tuple[type[Any], Callable[..., AbstractAsyncContextManager[str]]]:
    try:
        return load_object(_CONFIG, ""), load_object(_OPEN, "")
    except ModuleNotFoundError as exc:
        raise UserError(f"it needs the module '{exc.name}': pip install 'conductor-rl[serve]'") from exc


async def _run(open_server: Callable[[], AbstractAsyncContextManager[str]]) -> None:
    async with open_server() as url:
        click.echo(url)
        await anyio.sleep_forever()


def _say(line: str) -> None:
    click.echo(line, err=True)


def _model(named: str) -> tuple[Section, str]:
    """Return the section of a model, and the folder that its relative paths start from."""
    path = Path(named)
    if path.suffix not in _JOBS or not path.is_file():
        return Section(kind="pretrained", options={"path": named}), str(Path.cwd())
    fields, problems = load_fields(named)
    wrong = [problem for problem in problems if problem.field.partition(".")[0] == "model"]
    if wrong:
        raise ConfigError(wrong)
    if fields.get("model") is None:
        raise UserError(f"{named} has no section [model]; add one, or name a folder or a Hugging Face name")
    return fields["model"], str(path.parent.resolve())

"""The pages of the site that are made while it is built: every field of a job, and the list of decisions.

A table of fields that is copied by hand is wrong soon; this one is read from the types that decode the job.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from conductor import config
from protocols.adapters import ROOMS, known_kinds, resolve
from protocols.fleet import Restarts
from protocols.inference import Sampling
from protocols.messages import RegistrationKey
from protocols.sections import Section

CONTROLLER: tuple[tuple[str, type], ...] = (
    ("At the top", config.RunConfig),
    ("`[sampling]`", Sampling),
    ("`[filter]`", config.FilterConfig),
    ("`[checkpoint]`", config.CheckpointConfig),
    ("`[evaluation]`", config.EvaluationConfig),
    ("`[deadlines]`", config.Deadlines),
    ("`[fleet]`", config.FleetConfig),
    ("`[fleet.roles.NAME]`", config.RoleConfig),
    ("`[fleet.roles.NAME.restarts]`", Restarts),
    ("`[[fleet.collocate]]`", config.CollocateConfig),
    ("`[fleet.queues.NAME]`", config.QueueConfig),
    ("`[fleet.check]`", config.CheckConfig),
    ("`[registration]`", RegistrationKey),
)
_KINDS = {"integer": "whole number", "string": "text", "boolean": "true or false", "object": "table"}
_SPELLED = {"tracker": "[[trackers]]", "role": "[fleet.roles.NAME]"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made from the code; mkdocs calls this."""
    root = Path(config.docs_dir)
    files.append(File.generated(config, "fields.md", content=fields_page()))
    files.append(File.generated(config, "adr/index.md", content=decisions_page(root / "adr")))
    return files


def fields_page() -> str:
    """Return the page of every field that a job may have, with its type, its default and its docstring."""
    lines = [
        "# Every field of a job",
        "",
        "Made from the types that decode the job. [The job file](job.md) explains more, with what belongs together.",
        "Where a meaning says None, that is the field left out.",
    ]
    for title, kind in CONTROLLER:
        lines += ["", f"## {title}", "", *table(kind)]
    for section in ROOMS:
        for kind in known_kinds(section):
            lines += ["", f'## `{_SPELLED.get(section, f"[{section}]")}` `kind = "{kind}"`', ""]
            lines += table(resolve(section, kind).Config, none="No options.")
    return "\n".join(lines) + "\n"


def decisions_page(folder: Path) -> str:
    """Return the list of decisions, by number."""
    lines = ["# Decisions", "", "Why things are as they are, in the order in which it was decided.", ""]
    for path in sorted(folder.glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def table(kind: type, *, none: str = "") -> Sequence[str]:
    """Return a table of a message's fields: name, type, default, and what its docstring says of it."""
    fields = msgspec.structs.fields(kind)
    if not fields:
        return [none]
    said = explained(kind)
    rows = [f"| `{one.name}` | {_type(one)} | {_default(one)} | {said.get(one.name, '')} |" for one in fields]
    return ["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows]


def explained(kind: type) -> dict[str, str]:
    """Return what the sections ``Attributes`` of a message's docstring and its bases' say, by field."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        _, _, attributes = inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")
        for entry in _entries(attributes):
            names, _, text = entry.partition(": ")
            for name in names.split(", "):
                found[name] = text.replace("``", "`").replace("|", "\\|")
    return found


def _entries(attributes: str) -> Iterator[str]:
    """Yield each entry of such a section as one line."""
    block, *_ = re.split(r"\n(?=\S)", attributes)
    for entry in re.split(r"\n(?= {4}\S)", "\n" + block):
        if entry.strip():
            yield " ".join(entry.split())


def _type(field: msgspec.structs.FieldInfo) -> str:
    schema = msgspec.json.schema(field.type, schema_hook=lambda _: {})
    return _spelled(schema, schema.get("$defs", {}))


def _spelled(schema: dict[str, Any], named: dict[str, Any]) -> str:
    """Return a JSON schema in a few words."""
    if "$ref" in schema:
        schema = named[schema["$ref"].rsplit("/", 1)[-1]]
    if "anyOf" in schema:
        kinds = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(_spelled(one, named) for one in kinds))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_spelled(schema['items'], named)}" if schema.get("items") else "list"
    return _KINDS.get(kind, kind) + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return "".join(f", {word} {schema[key]}" for key, word in words.items() if key in schema)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, tuple) and value and isinstance(value[0], Section):
        return ", ".join(f'`kind = "{one.kind}"`' for one in value)
    if isinstance(value, Section):
        return f'`kind = "{value.kind}"`'
    if isinstance(value, msgspec.Struct):
        return "its fields' own"
    return "none" if value in (None, (), {}) else f"`{msgspec.json.encode(value).decode()}`"

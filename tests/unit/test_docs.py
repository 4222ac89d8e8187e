"""The pages that name things name all of them."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from conductor.config import (
    CheckConfig,
    CheckpointConfig,
    CollocateConfig,
    Deadlines,
    EvaluationConfig,
    FilterConfig,
    FleetConfig,
    RoleConfig,
    RunConfig,
)
from protocols.adapters import ROOMS, known_kinds, resolve
from protocols.fleet import Restarts
from protocols.inference import Sampling

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "job.md").read_text()
SECTIONS = {"sampling", "filter", "checkpoint", "evaluation", "deadlines", "fleet"} | {
    "model",
    "prompts",
    "reward",
    "episode",
    "engine",
    "train",
    "backend",
    "ledger",
}


MESSAGES = (
    RunConfig,
    Sampling,
    FilterConfig,
    CheckpointConfig,
    EvaluationConfig,
    Deadlines,
    FleetConfig,
    RoleConfig,
    CollocateConfig,
    CheckConfig,
    Restarts,
)


@pytest.mark.parametrize("config", MESSAGES)
def test_every_field_of_the_job_is_explained(config: type) -> None:
    """A field that stands nowhere is found by nobody."""
    for field in msgspec.structs.fields(config):
        section = config is RunConfig and field.name in SECTIONS
        named = f"`[{field.name}]`" if section else f"`{field.name}`"
        assert named in PAGE or f"`[[{field.name}]]`" in PAGE, field.name


@pytest.mark.parametrize("section", sorted(ROOMS))
def test_every_option_of_every_adapter_is_explained(section: str) -> None:
    """The same for what adapters bring."""
    for kind in known_kinds(section):
        assert f"`{kind}`" in PAGE, kind
        for field in msgspec.structs.fields(resolve(section, kind).Config):
            assert f"`{field.name}`" in PAGE, f"{section}.{kind}: {field.name}"


def test_the_site_is_made_from_every_page_and_has_every_field(tmp_path: Path) -> None:
    """Issue H: broken links, pages that the navigation forgets and docstrings that are none fail the build."""
    pytest.importorskip("mkdocs")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    fields = (tmp_path / "fields.html").read_text(encoding="utf-8")
    adapters = [resolve(section, kind).Config for section in ROOMS for kind in known_kinds(section)]
    for config in (*MESSAGES, *adapters):
        for field in msgspec.structs.fields(config):
            assert f"<td><code>{field.name}</code></td>" in fields, f"{config.__name__}.{field.name}"
    assert "<td></td>" not in fields, "a field whose docstring says nothing of it"
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?:https?:)?//", text), page


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_somewhere(page: str) -> None:
    """A page that names files long gone is worse than none."""
    text = (ROOT / page).read_text()
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (folder / target).exists(), target
    for path in re.findall(r"`((?:conductor|backends|protocols|tests|examples|docs)/[\w/.-]+\w)`", text):
        assert (ROOT / path).exists(), path


def test_the_job_in_the_readme_is_the_examples() -> None:
    """A newcomer compares the two; what README shows must stand in the file, with the same values."""
    shown = tomllib.loads(re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0])
    example = tomllib.loads((ROOT / "examples" / "reverse" / "job.toml").read_text())
    for name, value in shown.items():
        if isinstance(value, dict):
            assert value.items() <= example[name].items(), name
        else:
            assert example[name] == value, name
    assert shown.keys() == example.keys()

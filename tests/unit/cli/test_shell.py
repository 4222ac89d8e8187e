"""What a shell asks of the command: its version, completions, and no colour where none is wanted."""

import os
import pty
import re
import shutil
import subprocess
import sys
import tomllib
from io import FileIO
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from conductor.cli.main import main
from tests.unit.cli.test_commands import JOB

ROOT = Path(__file__).parents[3]
COLOUR = re.compile(r"\x1b\[(?:\d+;)*[349]\d")

pytestmark = pytest.mark.real_time


def test_the_version_is_the_packages() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert CliRunner().invoke(main, ["--version"]).stdout == f"conductor, version {declared}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_options_and_paths(shell: str) -> None:
    made = get_completion_class(shell)
    assert made is not None
    completion = made(main, {}, "conductor", "_CONDUCTOR_COMPLETE")

    def completed(before: list[str], begun: str) -> set[str]:
        return {item.value for item in completion.get_completions(before, begun)}

    assert completed([], "re") == {"report", "resume"}
    assert completed(["run"], "--ru") == {"--run-dir"}
    assert completed(["trace"], "--o") == {"--output", "--otlp"}
    (path,) = completion.get_completions(["run"], "jo")
    assert path.type == "file"
    assert "_CONDUCTOR_COMPLETE" in completion.source()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_the_line_that_the_documentation_gives(tmp_path: Path) -> None:
    """The line is in docs/operations.md; here the command is one that runs from the sources."""
    command = tmp_path / "conductor"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m conductor "$@"\n', encoding="utf-8")
    command.chmod(0o700)
    (line,) = re.findall(r"`(eval .*bash_source conductor\)\")`", (ROOT / "docs" / "operations.md").read_text())
    script = f"""{line}
COMP_WORDS=(conductor insp) COMP_CWORD=1
_conductor_completion conductor
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    bash = ["bash", "--norc", "-c", script]
    done = subprocess.run(bash, env=environment, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    assert done.stdout == "inspect\n"


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_terminal_has_colours_unless_none_are_wanted(no_colour: str, tmp_path: Path) -> None:
    """Issue H, https://no-color.org: it counts where it is set and not empty."""
    job = tmp_path / "job.toml"
    job.write_text(JOB, encoding="utf-8")
    environment = {**os.environ, "NO_COLOR": no_colour, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "conductor", "run", str(job), "--run-dir", str(tmp_path / "run")]
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        with subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs, cwd=ROOT) as process:  # noqa: S603
            os.close(theirs)
            shown = b"".join(iter(lambda: read_screen(screen), b"")).decode()
        assert process.returncode == 0, shown
    assert "4 admitted" in shown
    assert bool(COLOUR.search(shown)) != bool(no_colour)


def read_screen(screen: FileIO) -> bytes:
    try:
        return screen.read(4096)
    except OSError:  # what Linux says when the other side is closed
        return b""

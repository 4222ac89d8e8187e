"""What runs on processes may leave behind, looked for in the system itself."""

import gc
from contextlib import suppress
from pathlib import Path


def marked(place: Path) -> list[int]:
    """Return the processes of the runs that keep their bulk data in a place."""
    return carrying(f"{place}/")


def carrying(mark: str) -> list[int]:
    """Return the processes whose mark begins so."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"CONDUCTOR_WORKER={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def in_session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(") ")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(entry.name))
    return found


def names_in(place: Path) -> list[str]:
    """Return the names of what lies in a folder."""
    return [path.name for path in place.iterdir()]


def descriptors() -> set[tuple[str, str]]:
    """Return the open descriptors of this process, each with what it is open on.

    Tests look for those that came to be. One that ends meanwhile was open before: a collector of garbage
    closes, whenever it likes, what an earlier test had left to it.
    """
    gc.collect()
    found: set[tuple[str, str]] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.add((entry.name, str(entry.readlink())))
    return {(number, target) for number, target in found if not target.startswith("/proc/")}

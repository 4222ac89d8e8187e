"""What runs on processes may leave behind, looked for in the system itself."""

from pathlib import Path


def marked(place: Path) -> list[int]:
    """Return the processes of the runs that keep their bulk data in a place."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"CONDUCTOR_WORKER={place}/".encode() in (entry / "environ").read_bytes():
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


def descriptors() -> set[str]:
    """Return the open descriptors of this process."""
    return {entry.name for entry in Path("/proc/self/fd").iterdir() if not _lists_them(entry)}


def _lists_them(entry: Path) -> bool:
    try:
        return str(entry.readlink()).startswith("/proc/")
    except FileNotFoundError:
        return True

"""One flipped byte, anywhere: it is named, or counted as a loss, or lies where nobody reads. Torn ends as well."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from structlog.testing import capture_logs

from backends.ledgers._sqlite.reading import read_record
from backends.ledgers._sqlite.rows import End, pack, unpack
from backends.ledgers._sqlite.store import Store, open_store
from protocols.errors import CorruptLedger, UserError
from protocols.ledger import LedgerEvent
from tests.support.ledgers import bulky, generating, leave_as_killed, open_sqlite, replayed
from tests.support.texts import exactly

Contents = Mapping[str, bytes]
Outcome = tuple[tuple[LedgerEvent, ...], int]

EVENTS = (*(generating(lease) for lease in range(6)), bulky(6, 700), *(bulky(lease, 60) for lease in range(7, 14)))
"""Enough for inner and overflow pages, where a page has 512 bytes."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def append(store: Store, *events: LedgerEvent) -> None:
    store.append([msgspec.msgpack.encode(event) for event in events])


def contents(folder: Path) -> Contents:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix not in {".lock", ".sqlite-shm"}}


def written(folder: Path, *, killed: bool, events: tuple[LedgerEvent, ...] = EVENTS) -> Contents:
    """Write one event a commit into a file of small pages; return all files as they lie there afterwards."""
    folder.mkdir()
    path = folder / "ledger.sqlite"
    db = sqlite3.connect(path)
    db.execute("PRAGMA page_size = 512")
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    with open_store(path, synchronous="normal", resume=False) as store:
        for event in events:
            append(store, event)
        if killed:
            return contents(folder)
    return contents(folder)


def put(folder: Path, files: Contents) -> Path:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / "ledger.sqlite"


def through_the_store(path: Path) -> Outcome:
    with open_store(path, synchronous="normal", resume=True) as store:
        events: tuple[LedgerEvent, ...] = ()
        while page := store.replay(len(events)):
            events += page
        return events, store.lost


def through_the_reader(path: Path) -> Outcome:
    record = read_record(path)
    return record.events, record.lost


def verdict(opened: Callable[[Path], Outcome], path: Path, expected: tuple[LedgerEvent, ...]) -> str:
    """Say what became of the damage; fail where it went by unseen."""
    try:
        events, lost = opened(path)
    except CorruptLedger:
        return "named"
    assert events == expected[: len(events)], "what is given is what was written"
    assert lost == len(expected) - len(events), "what is missing is counted"
    return "counted" if lost else "unread"


def flipped(files: Contents, name: str, stride: int) -> Iterator[Contents]:
    content = files[name]
    for place in range(0, len(content), stride):
        for bits in (0xFF, 0x01):
            yield {**files, name: content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :]}


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of files, each brought to the disk, take a minute."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:  # noqa: S108
        yield Path(folder)


OPENED = pytest.mark.parametrize("opened", [through_the_store, through_the_reader])
FLIPPED = pytest.mark.parametrize(
    ("opened", "stride"),
    [pytest.param(through_the_reader, 1, id="reader"), pytest.param(through_the_store, 7, id="store")],
)
"""Both read by the same code: every byte for one of them."""


@FLIPPED
def test_a_flipped_byte_of_the_file_is_named_or_unread(
    memory: Path, opened: Callable[[Path], Outcome], stride: int
) -> None:
    files = written(memory / "run", killed=False)
    assert len(files["ledger.sqlite"]) >= 8 * 512, "inner, leaf and overflow pages"
    found = Counter(
        verdict(opened, put(memory / "hurt", hurt), EVENTS) for hurt in flipped(files, "ledger.sqlite", stride)
    )
    assert found["named"] > found["unread"] > 0
    assert not found["counted"], "no part of the record goes missing whole"


@FLIPPED
def test_a_flipped_byte_of_the_log_costs_what_came_after_it_and_that_is_counted(
    memory: Path, opened: Callable[[Path], Outcome], stride: int
) -> None:
    """SQLite drops the end of a log from the first damaged page on, and says that all is well."""
    events = EVENTS[:4]
    files = written(memory / "run", killed=True, events=events)
    assert len(files["ledger.sqlite-wal"]) > 4 * 512
    found = Counter(
        verdict(opened, put(memory / "hurt", hurt), events) for hurt in flipped(files, "ledger.sqlite-wal", stride)
    )
    assert found.keys() == {"counted"}


@FLIPPED
def test_a_flipped_byte_of_the_mark_proves_nothing(
    memory: Path, opened: Callable[[Path], Outcome], stride: int
) -> None:
    files = written(memory / "run", killed=False)
    found = Counter(
        verdict(opened, put(memory / "hurt", hurt), EVENTS) for hurt in flipped(files, "ledger.sqlite.mark", stride)
    )
    assert found.keys() == {"unread"}


@OPENED
def test_a_log_that_is_cut_short_costs_what_is_cut_and_that_is_counted(
    tmp_path: Path, opened: Callable[[Path], Outcome]
) -> None:
    files = written(tmp_path / "run", killed=True)
    log = files["ledger.sqlite-wal"]
    left = set()
    for length in range(0, len(log), 200):
        path = put(tmp_path / "hurt", {**files, "ledger.sqlite-wal": log[:length]})
        assert verdict(opened, path, EVENTS) == "counted"
        left.add(opened(path)[1])
    assert len(left) > len(EVENTS) / 2, "what came before the cut is there"


@OPENED
def test_tables_that_are_gone_are_not_a_new_ledger(tmp_path: Path, opened: Callable[[Path], Outcome]) -> None:
    """A file cut to nothing would else be taken for a run that had not begun."""
    files = written(tmp_path / "run", killed=False)
    with pytest.raises(CorruptLedger, match="14 events were in it, and its tables are gone"):
        opened(put(tmp_path / "hurt", {**files, "ledger.sqlite": b""}))


@pytest.mark.parametrize("row", [1, 7, 14])
def test_damage_is_named_by_the_number_of_the_event(tmp_path: Path, row: int) -> None:
    path = put(tmp_path / "hurt", written(tmp_path / "run", killed=False))
    db = sqlite3.connect(path)
    db.execute("UPDATE events SET body = CAST(substr(body, 2) || x'00' AS BLOB) WHERE seq = ?", (row,))
    db.commit()
    db.close()
    with pytest.raises(CorruptLedger, match=f"event {row} of the ledger .*: not what was written"):
        through_the_reader(path)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("DELETE FROM events WHERE seq = 7", "events 7 to 8"),
        ("UPDATE events SET body = (SELECT body FROM events WHERE seq = 3) WHERE seq = 7", "event 7"),
        ("UPDATE events SET seq = 100 WHERE seq = 14", "events 14 to 100"),
        ("UPDATE events SET seq = 0 WHERE seq = 14", "what follows event 0"),
    ],
)
def test_rows_that_are_missing_or_elsewhere_are_found(tmp_path: Path, statement: str, named: str) -> None:
    path = put(tmp_path / "hurt", written(tmp_path / "run", killed=False))
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()
    with pytest.raises(CorruptLedger, match=named):
        through_the_reader(path)


def test_an_event_of_a_newer_version_is_no_damage() -> None:
    start = End(seq=0, crc=1)
    known = msgspec.msgpack.encode(generating(0))
    rows = [*pack([known], start)[0]]
    newer, _ = pack([known, msgspec.msgpack.encode({"type": "rented", "lease_id": "L0"})], End(seq=1, crc=rows[0][1]))
    with pytest.raises(
        UserError,
        match=exactly(
            "events 2 to 3 of the ledger ledger.sqlite: whole, but not of this version "
            "(...rented...); resume with the version that wrote it"
        ),
    ):
        unpack([*rows, *newer], start, Path("ledger.sqlite"))


@pytest.mark.real_time
async def test_after_a_loss_the_record_goes_on_from_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    async with open_sqlite(tmp_path / "run") as ledger:
        for lease in range(10):
            await ledger.append((generating(lease),))
        left = leave_as_killed(tmp_path / "run", tmp_path / "left")
    log = left / "ledger.sqlite-wal"
    log.write_bytes(log.read_bytes()[:-5000])
    for _ in range(2):  # nothing was appended after the first time: it is told again
        with capture_logs() as logs:
            async with open_sqlite(left, resume=True) as ledger:
                assert await ledger.lost() == 2
                assert await replayed(ledger) == tuple(generating(lease) for lease in range(8))
        (told,) = logs
        assert (told["event"], told["events"], told["log_level"]) == ("ledger.events_lost", 2, "warning")
    async with open_sqlite(left, resume=True) as ledger:
        await ledger.append((generating(20), generating(21)))
    async with open_sqlite(left, resume=True) as ledger:
        assert await ledger.lost() == 0
        assert await replayed(ledger) == tuple(generating(lease) for lease in (*range(8), 20, 21))


async def _refused(run_dir: Path) -> None:
    async with open_sqlite(run_dir):
        pass


@pytest.mark.real_time
async def test_a_run_that_lost_all_of_its_events_is_a_run(tmp_path: Path) -> None:
    put(tmp_path / "left", {**written(tmp_path / "run", killed=True), "ledger.sqlite-wal": b""})
    with pytest.raises(UserError, match="holds the record of a run"):
        await _refused(tmp_path / "left")

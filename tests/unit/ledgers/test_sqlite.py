"""The SQLite adapter: whose a file is, who may open it, and what happens at its edges."""

import os
import shutil
import socket
import sqlite3
import stat
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from backends.ledgers import sqlite
from backends.ledgers._sqlite.mark import mark_path, read_mark
from protocols.errors import CorruptLedger, PortFailed, UserError
from protocols.sections import Site
from tests.support.ledgers import bulky, generating, leave_as_killed, open_sqlite, replayed, site_of, unprivileged
from tests.support.texts import exactly

pytestmark = pytest.mark.real_time

CFG = sqlite.Config()


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in {".sqlite", ".sqlite-wal"})


async def write_run(run_dir: Path, *leases: int) -> None:
    async with open_sqlite(run_dir) as ledger:
        await ledger.append(tuple(generating(lease) for lease in leases))


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that others than its owner can enter, which pytest's own is not."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "run").mkdir()
        yield Path(folder)


@contextmanager
def read_only(folder: Path) -> Generator[None]:
    """Make a folder and what is in it read-only, and be somebody whom that binds."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (*folder.iterdir(), folder)}
    for path in modes:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with unprivileged():
            yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


class TestWhoseItIs:
    async def test_a_run_that_goes_on_finds_its_events(self, tmp_path: Path) -> None:
        await write_run(tmp_path, 0, 1)
        first = sqlite.read(CFG, site_of(tmp_path))
        async with open_sqlite(tmp_path, resume=True) as ledger:
            assert await replayed(ledger) == (generating(0), generating(1))
            await ledger.append((generating(2),))
            await ledger.compact((generating(3),))
        second = sqlite.read(CFG, site_of(tmp_path))
        assert second.events == (generating(3),)
        assert second.lost == first.lost == 0

    async def test_a_new_run_does_not_go_on_with_the_record_of_another(self, tmp_path: Path) -> None:
        """W12: a re-run under the same name loaded the old state and ended at once as a success."""
        await write_run(tmp_path, 0)
        with pytest.raises(
            UserError,
            match=exactly(
                f"{tmp_path} holds the record of a run; "
                f"continue it with `conductor resume {tmp_path}`, or choose another run_dir"
            ),
        ):
            async with open_sqlite(tmp_path):
                pass
        assert sqlite.read(CFG, site_of(tmp_path)).events == (generating(0),)

    async def test_the_mark_of_another_ledger_is_not_taken_for_its_own(self, tmp_path: Path) -> None:
        """A file that was put in the place of another has not lost the other's events."""
        for name, leases in (("a", 3), ("b", 1)):
            (tmp_path / name).mkdir()
            await write_run(tmp_path / name, *range(leases))
        shutil.copyfile(tmp_path / "a" / "ledger.sqlite.mark", tmp_path / "b" / "ledger.sqlite.mark")
        assert sqlite.read(CFG, site_of(tmp_path / "b")).lost == 0

    async def test_a_run_that_died_before_its_first_event_may_begin_again(self, tmp_path: Path) -> None:
        await write_run(tmp_path)
        await write_run(tmp_path, 0)
        assert sqlite.read(CFG, site_of(tmp_path)).events == (generating(0),)

    @pytest.mark.parametrize("content", [None, b""], ids=["no file", "an empty file"])
    async def test_where_nothing_was_begun_nothing_is_resumed(self, tmp_path: Path, content: bytes | None) -> None:
        if content is not None:
            (tmp_path / "ledger.sqlite").write_bytes(content)
        with pytest.raises(
            UserError,
            match=exactly(
                f"{tmp_path} holds no record of a run (ledger.sqlite); name the folder of a run that was begun"
            ),
        ):
            async with open_sqlite(tmp_path, resume=True):
                pass
        said = {
            None: f"there is no ledger {tmp_path}/ledger.sqlite; name the folder of a run that keeps one",
            b"": f"the ledger {tmp_path}/ledger.sqlite holds nothing yet; wait until the run has begun",
        }
        with pytest.raises(UserError, match=exactly(said[content])):
            sqlite.read(CFG, site_of(tmp_path))
        if content is None:
            assert files(tmp_path) == set(), "a folder named by mistake stays as it is"

    async def test_the_mark_of_a_file_that_was_taken_away_says_nothing_of_the_next_one(self, tmp_path: Path) -> None:
        await write_run(tmp_path, 0, 1, 2)
        (tmp_path / "ledger.sqlite").unlink()
        async with open_sqlite(tmp_path) as ledger:
            assert await ledger.lost() == 0
            await ledger.append((generating(0),))

    async def test_a_newer_format_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("backends.ledgers._sqlite.form.FORMAT", 2)
        await write_run(tmp_path, 0)
        monkeypatch.undo()
        why = "has format 2, and this version knows up to 1; use the version that wrote it, or a newer one"
        text = exactly(f"the ledger {tmp_path}/ledger.sqlite {why}")
        with pytest.raises(UserError, match=text):
            async with open_sqlite(tmp_path, resume=True):
                pass
        with pytest.raises(UserError, match=text):
            sqlite.read(CFG, site_of(tmp_path))

    async def test_another_database_is_no_ledger(self, tmp_path: Path) -> None:
        db = sqlite3.connect(tmp_path / "ledger.sqlite")
        db.execute("CREATE TABLE notes (text)")
        db.close()
        with pytest.raises(CorruptLedger, match="no such table: head"):
            async with open_sqlite(tmp_path, resume=True):
                pass


UNOPENED = "the ledger .../ledger.sqlite cannot be opened: ...; give access to its folder, or name another run_dir"


class TestWhoMayOpenIt:
    async def test_a_second_controller_is_refused_and_told_who_the_first_is(self, tmp_path: Path) -> None:
        """Two controllers on one folder would each train what the other leased out."""
        async with open_sqlite(tmp_path) as ledger:
            await ledger.append((generating(0),))
            first = f"process {os.getpid()} on {socket.gethostname()}"
            mend = "wait until it ends or stop it, or choose another run_dir"
            text = f"another controller writes the ledger {tmp_path}/ledger.sqlite: {first}; {mend}"
            with pytest.raises(UserError, match=exactly(text)):
                async with open_sqlite(tmp_path, resume=True):
                    pass
            await ledger.append((generating(1),))
        async with open_sqlite(tmp_path, resume=True) as ledger:
            assert await replayed(ledger) == (generating(0), generating(1))

    async def test_a_folder_that_cannot_be_written_to_is_refused(self, shared: Path) -> None:
        with read_only(shared / "run"), pytest.raises(UserError, match=exactly(UNOPENED)):
            async with open_sqlite(shared / "run"):
                pass

    async def test_a_file_that_cannot_be_written_to_is_refused_at_the_start(self, shared: Path) -> None:
        """Found at the first event it would cost what was generated until then."""
        await write_run(shared / "run", 0)
        with read_only(shared / "run"), pytest.raises(UserError, match=exactly(UNOPENED)):
            async with open_sqlite(shared / "run", resume=True):
                pass

    async def test_a_folder_that_cannot_be_entered_is_refused(self, shared: Path) -> None:
        await write_run(shared / "run", 0)
        (shared / "run").chmod(0o700)
        with unprivileged():
            for resume in (False, True):
                with pytest.raises(UserError, match=exactly(UNOPENED)):
                    async with open_sqlite(shared / "run", resume=resume):
                        pass
            with pytest.raises(UserError, match=exactly(UNOPENED)):
                sqlite.read(CFG, site_of(shared / "run"))

    async def test_a_folder_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=exactly(UNOPENED)):
            async with open_sqlite(tmp_path / "nowhere"):
                pass

    async def test_cancelled_while_it_opens_it_leaves_nothing_locked(self, tmp_path: Path) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with open_sqlite(tmp_path):
                pass
        assert scope.cancelled_caught
        async with open_sqlite(tmp_path):
            pass


class TestReading:
    async def test_what_is_durable_is_read_while_it_is_written(self, tmp_path: Path) -> None:
        async with open_sqlite(tmp_path) as ledger:
            for lease in range(5):
                await ledger.append((generating(lease),))
                record = sqlite.read(CFG, site_of(tmp_path))
                assert record.events == tuple(generating(lease) for lease in range(lease + 1))
                assert record.lost == 0

    async def test_reading_leaves_the_folder_as_it_was(self, tmp_path: Path) -> None:
        await write_run(tmp_path, 0)
        before = files(tmp_path)
        sqlite.read(CFG, site_of(tmp_path))
        assert files(tmp_path) == before == {"ledger.sqlite", "ledger.sqlite.lock", "ledger.sqlite.mark"}

    async def test_a_run_that_ended_is_read_where_nothing_can_be_written(self, shared: Path) -> None:
        await write_run(shared / "run", 0, 1)
        with read_only(shared / "run"):
            assert sqlite.read(CFG, site_of(shared / "run")).events == (generating(0), generating(1))

    async def test_a_run_that_was_killed_is_read_where_nothing_can_be_written(self, shared: Path) -> None:
        """SQLite needs an index beside the log and may not make it there."""
        async with open_sqlite(shared / "run") as ledger:
            await ledger.append((generating(0), generating(1)))
            left = leave_as_killed(shared / "run", shared / "left")
        with read_only(left):
            record = sqlite.read(CFG, site_of(left))
        assert record.events == (generating(0), generating(1))
        assert record.lost == 0
        assert files(left) == {"ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite.mark"}


class TestItsEdges:
    def test_without_a_folder_it_is_refused_by_validation(self) -> None:
        (problem,) = sqlite.check(CFG, Site(job_dir="/"))
        why = "its file lies in the run's folder, and this run has none"
        assert str(problem) == f"ledger.kind = 'sqlite': {why}; give a run_dir, or take kind = 'memory'"
        assert not sqlite.check(CFG, Site(job_dir="/", run_dir="/runs/a"))
        assert not sqlite.check(sqlite.Config(path="/fast/ledger.sqlite"), Site(job_dir="/"))

    async def test_what_was_appended_is_written_when_it_closes(self, tmp_path: Path) -> None:
        async with anyio.create_task_group() as tasks, open_sqlite(tmp_path) as ledger:
            for lease in range(200):
                tasks.start_soon(ledger.append, (generating(lease),))
            await checkpoint()
        assert sqlite.read(CFG, site_of(tmp_path)).events == tuple(generating(lease) for lease in range(200))

    async def test_after_it_closed_it_refuses(self, tmp_path: Path) -> None:
        async with open_sqlite(tmp_path) as ledger:
            pass
        with pytest.raises(PortFailed, match="closed"):
            await ledger.append((generating(0),))
        with pytest.raises(PortFailed, match="closed"):
            await replayed(ledger)

    async def test_full_durability_asks_the_disk_at_every_commit(self, tmp_path: Path) -> None:
        async with open_sqlite(tmp_path, synchronous="full") as ledger:
            ((level,),) = await ledger._thread.ask(lambda store: store._db.execute("PRAGMA synchronous").fetchall())
            await ledger.append((generating(0),))
        assert level == 2

    async def test_compaction_gives_space_back(self, tmp_path: Path) -> None:
        async with open_sqlite(tmp_path) as ledger:
            for lease in range(100):
                await ledger.append((bulky(lease, 10_000),))
            await ledger.compact((generating(0),))
            assert size_of(tmp_path) < 40_000

    async def test_a_compaction_that_fails_leaves_the_record_as_it_was(self, tmp_path: Path) -> None:
        async with open_sqlite(tmp_path) as ledger:
            await ledger.append((generating(0),))
            await ledger._thread.ask(lambda store: store._db.execute("PRAGMA max_page_count = 1").fetchall())
            with pytest.raises(PortFailed, match="disk is full"):
                await ledger.compact((bulky(0, 100_000),))
            assert await replayed(ledger) == (generating(0),)
            await ledger.append((generating(1),))
            assert await replayed(ledger) == (generating(0), generating(1))

    async def test_a_reader_in_the_way_of_compaction_sees_the_old_record(self, tmp_path: Path) -> None:
        async with open_sqlite(tmp_path) as ledger:
            await ledger.append((generating(0), generating(1)))
            reader = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
            reader.execute("BEGIN")
            (before,) = reader.execute("SELECT max(seq) FROM events").fetchone()
            await ledger.compact((generating(2),))
            assert reader.execute("SELECT max(seq) FROM events").fetchone() == (before,)
            reader.close()
            assert await replayed(ledger) == (generating(2),)

    async def test_a_foreign_writer_in_the_way_is_named(self, tmp_path: Path) -> None:
        async with open_sqlite(tmp_path) as ledger:
            await ledger._thread.ask(lambda store: store._db.execute("PRAGMA busy_timeout = 0").fetchall())
            other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(PortFailed, match="locked; another program"):
                await ledger.append((generating(0),))
            other.close()

    @pytest.mark.parametrize("mark", [b"", b"torn", b"\xff" * 28, b"\x00" * 40])
    async def test_a_torn_mark_proves_nothing_and_stops_nothing(self, tmp_path: Path, mark: bytes) -> None:
        await write_run(tmp_path, 0, 1)
        mark_path(tmp_path / "ledger.sqlite").write_bytes(mark)
        with capture_logs() as logs:
            async with open_sqlite(tmp_path, resume=True) as ledger:
                assert await ledger.lost() == 0
                assert await replayed(ledger) == (generating(0), generating(1))
                await ledger.append((generating(2),))
        assert [entry["event"] for entry in logs] == ["ledger.mark_torn"]
        mended = read_mark(tmp_path / "ledger.sqlite")
        assert mended is not None
        assert mended.seq == 3


class TestItsThread:
    async def test_closing_does_not_wait_for_ever(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A disk that does not answer must not hold up the end of a run."""
        monkeypatch.setattr(sqlite, "CLOSE_DEADLINE_S", 0.01)
        answer = threading.Event()
        async with anyio.create_task_group() as tasks:
            with capture_logs() as logs:
                async with open_sqlite(tmp_path) as ledger:
                    tasks.start_soon(ledger._thread.ask, lambda _: answer.wait(30))
                    tasks.start_soon(ledger.append, (generating(0),))
                    await checkpoint()
            assert [entry["event"] for entry in logs] == ["ledger.close_timed_out"]
            answer.set()
        await to_thread.run_sync(ledger._thread._thread.join)
        assert sqlite.read(CFG, site_of(tmp_path)).events == (generating(0),)

    async def test_an_unforeseen_failure_reaches_all_who_wait_and_all_who_come_later(self, tmp_path: Path) -> None:
        """I04: a dead thread that nobody notices is a run that waits for ever."""

        def bug(_: object) -> None:
            raise ZeroDivisionError("nobody thought of it")

        async with open_sqlite(tmp_path) as ledger:
            with capture_logs() as logs:
                async with anyio.create_task_group() as tasks:
                    for wait in (lambda: ledger._thread.ask(bug), lambda: ledger.replay(0), lambda: ledger.append(())):
                        tasks.start_soon(_fails, wait)
            await _fails(lambda: ledger.replay(0))
            await _fails(lambda: ledger.append((generating(0),)))
        assert [entry["event"] for entry in logs] == ["ledger.failed"]


async def _fails(wait: Any) -> None:
    with pytest.raises(PortFailed, match="ZeroDivisionError: nobody thought of it"):
        await wait()

"""The file of the steps: each of them once, whatever ends the run."""

import json
import threading
from pathlib import PosixPath
from typing import Any

import anyio
import anyio.to_thread
import pytest

from backends.trackers.jsonl import Writer


class SlowPath(PosixPath):
    """A file that is opened when it may be."""

    may = threading.Event()
    asked = threading.Event()

    def open(self, *args: Any, **options: Any) -> Any:
        self.asked.set()
        assert self.may.wait(10)
        return super().open(*args, **options)


@pytest.mark.real_time
async def test_a_line_that_is_being_written_when_the_run_is_cancelled_is_written_once(tmp_path: PosixPath) -> None:
    """I57: the thread wrote on behind the cancellation, and the same lines were written again behind it."""
    writer = Writer(SlowPath(tmp_path / "metrics.jsonl"))
    send, receive = anyio.create_memory_object_stream[bytes](10)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run, receive)
        with send:
            send.send_nowait(b'{"step": 1}\n')
            assert await anyio.to_thread.run_sync(SlowPath.asked.wait, 10)
            send.send_nowait(b'{"step": 2}\n')
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
            SlowPath.may.set()
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]

"""What is special about a payload store of files: arrays are mapped, files are whole or not there, room is bounded."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from backends.processes.bulk import _ALIGNED, encode
from backends.processes.payloads import SharedPayloads
from protocols.errors import InvariantError, Transient, WorkerLost
from protocols.messages import PayloadRef
from protocols.rollouts import GroupPayload

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[3]
REF = PayloadRef(owner="weights/3", key="v3")
GROUP = GroupPayload(prompt_ids=(1,), prompt_text="1", temperature=1.0, samples=())


def store(folder: Path, reserve_bytes: int = 0) -> SharedPayloads:
    return SharedPayloads(folder, reserve_bytes)


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (2, 1, 7)])
async def test_tensors_come_back_to_the_last_bit(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 100).to(dtype)
    payloads = store(tmp_path)
    await payloads.put(REF, {"odd": b"123", "weight": tensor})
    got = await payloads.get(REF)
    assert isinstance(got, dict)
    assert (got["weight"].dtype, got["weight"].shape) == (dtype, shape)
    assert torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (got["weight"], tensor)))
    assert got["weight"].data_ptr() % _ALIGNED == 0, "as torch aligns its own, or the bits of sums differ"


async def test_a_view_is_stored_as_what_it_shows(tmp_path: Path) -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    payloads = store(tmp_path)
    await payloads.put(REF, {"transposed": matrix.T, "row": matrix[1]})
    got = await payloads.get(REF)
    assert isinstance(got, dict)
    assert torch.equal(got["transposed"], matrix.T)
    assert torch.equal(got["row"], matrix[1])


async def test_what_was_mapped_outlives_its_file(tmp_path: Path) -> None:
    """W19: a buffer is freed while a peer still reads it."""
    payloads = store(tmp_path)
    await payloads.put(REF, {"weight": torch.ones(1000)})
    got = await payloads.get(REF)
    assert isinstance(got, dict)
    await payloads.put(REF, {"weight": torch.zeros(1000)})
    await payloads.release(REF.owner)
    assert got["weight"].sum() == 1000
    assert files(tmp_path) == []


async def test_readers_share_one_copy_that_none_of_them_can_change(tmp_path: Path) -> None:
    """One copy a machine: what is mapped is the file, not memory of whoever reads."""
    payloads = store(tmp_path)
    await payloads.put(REF, {"weight": torch.ones(2**22)})
    first, second = [await payloads.get(REF) for _ in range(2)]
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    before = _private_kib()
    assert first["weight"].sum() == second["weight"].sum() == 2**22
    assert _private_kib() - before < 2**12, "32 MiB were read, and none of them copied"
    first["weight"][0] = 5
    assert second["weight"][0] == 1


def _private_kib() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


async def test_room_is_bounded(tmp_path: Path) -> None:
    """Whoever maps memory where there is none is killed, and others use the same place."""
    payloads = store(tmp_path, reserve_bytes=2**62)
    with pytest.raises(Transient, match=f"{2**62} must stay so"):
        await payloads.put(REF, {"x": bytes(1000)})
    assert files(tmp_path) == []


async def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    payloads = store(tmp_path)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(WorkerLost, match="too large"):
            await payloads.put(REF, {"x": bytes(20_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert files(tmp_path) == [], "nothing half written stays"


@pytest.mark.parametrize("left", [0, 5, 60, 100])
async def test_half_a_file_is_lost_and_not_believed(tmp_path: Path, left: int) -> None:
    payloads = store(tmp_path)
    await payloads.put(REF, {"x": bytes(1000)})
    (file,) = files(tmp_path)
    os.truncate(file, left)
    with pytest.raises(WorkerLost):
        await payloads.get(REF)


async def test_what_is_not_whole_yet_is_nobodys(tmp_path: Path) -> None:
    """A writer that is killed half way leaves a file under another name, which goes with the folder."""
    (tmp_path / "#77-0").write_bytes(b"half")
    payloads = store(tmp_path)
    assert await payloads.owners() == frozenset()
    await payloads.put(REF, GROUP)
    assert await payloads.owners() == {REF.owner}


async def test_strange_names_are_kept_apart(tmp_path: Path) -> None:
    payloads = store(tmp_path)
    names = ["a/b", "a@b", "a%2Fb", "a", "../a", "ä b", "."]
    for name in names:
        await payloads.put(PayloadRef(owner=name, key=name), {"x": name.encode()})
    assert await payloads.owners() == set(names)
    for name in names:
        assert await payloads.get(PayloadRef(owner=name, key=name)) == {"x": name.encode()}
    with pytest.raises(InvariantError, match="longer"):
        await payloads.put(PayloadRef(owner="a" * 300, key="k"), GROUP)


async def test_what_is_no_payload_is_refused(tmp_path: Path) -> None:
    payloads = store(tmp_path)
    with pytest.raises(InvariantError, match="cannot be stored"):
        await payloads.put(REF, {"x": 1})
    assert files(tmp_path) == []


async def test_a_folder_that_is_gone_loses_what_it_held(tmp_path: Path) -> None:
    """A worker that outlives its run for a moment gets an error that says what to do, not a foreign one."""
    payloads = store(tmp_path / "gone")
    calls = [
        lambda: payloads.put(REF, GROUP),
        lambda: payloads.get(REF),
        lambda: payloads.release("a"),
        payloads.owners,
    ]
    for call in calls:
        with pytest.raises(WorkerLost):
            await call()


READ = """
import sys, anyio, torch
from pathlib import Path
from backends.processes.payloads import SharedPayloads
from protocols.messages import PayloadRef
got = anyio.run(SharedPayloads(Path(sys.argv[1]), 0).get, PayloadRef(owner="weights/3", key="v3"))
print(got["weight"].tolist())
"""


async def test_another_process_reads_what_was_put(tmp_path: Path) -> None:
    await store(tmp_path).put(REF, {"weight": torch.arange(3)})
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", READ, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603, ASYNC221
    assert done.stdout == "[0, 1, 2]\n"


def test_arrays_are_not_copied_on_their_way_to_the_file() -> None:
    tensor = torch.ones(1000)
    parts = encode({"weight": tensor})
    tensor.zero_()
    assert bytes(parts[-2]) == bytes(4000)

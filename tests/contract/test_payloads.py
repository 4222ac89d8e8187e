"""What every payload store keeps to."""

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from backends.inproc.payloads import InprocPayloads
from backends.processes.payloads import SharedPayloads
from backends.sim.payloads import ScriptedPayloads
from protocols.backend import PayloadPort
from protocols.errors import InvariantError, PortFailed, WorkerLost
from protocols.messages import PayloadRef
from protocols.rollouts import GroupPayload, SamplePayload

MakePayloads = Callable[[], PayloadPort]

GROUP = GroupPayload(
    prompt_ids=(1, 2),
    prompt_text="12",
    temperature=1.0,
    samples=(SamplePayload(token_ids=(3,), logprobs=(-0.5,), text="3"),),
)


@pytest.fixture(
    params=[
        pytest.param(lambda _: InprocPayloads(), id="inproc"),
        pytest.param(lambda _: InprocPayloads(encode_messages=True), id="inproc-encoded"),
        pytest.param(lambda _: ScriptedPayloads(), id="scripted"),
        pytest.param(lambda folder: SharedPayloads(folder, 0), id="processes", marks=pytest.mark.real_time),
        pytest.param("ray_payloads", id="ray", marks=[pytest.mark.real_time, pytest.mark.cluster]),
    ]
)
def make_payloads(request: pytest.FixtureRequest, tmp_path: Path) -> MakePayloads:
    if isinstance(request.param, str):
        return request.getfixturevalue(request.param)
    return partial(request.param, tmp_path)


def ref(owner: str, key: str = "group") -> PayloadRef:
    return PayloadRef(owner=owner, key=key)


async def test_what_was_put_is_there(make_payloads: MakePayloads) -> None:
    payloads = make_payloads()
    await payloads.put(ref("p.1/L0/0/"), GROUP)
    assert await payloads.get(ref("p.1/L0/0/")) == GROUP
    assert await payloads.get(ref("p.1/L0/0/")) == GROUP, "getting takes nothing away"


async def test_a_mapping_of_arrays_is_a_payload(make_payloads: MakePayloads) -> None:
    payloads = make_payloads()
    weight = memoryview(b"bulk")
    await payloads.put(ref("weights/3", "parameters"), {"weight": weight, "empty": b""})
    got = await payloads.get(ref("weights/3", "parameters"))
    assert got == {"weight": b"bulk", "empty": b""}


async def test_the_last_of_two_puts_wins(make_payloads: MakePayloads) -> None:
    payloads = make_payloads()
    await payloads.put(ref("a"), {"x": b"1"})
    await payloads.put(ref("a"), {"x": b"2"})
    assert await payloads.get(ref("a")) == {"x": b"2"}


async def test_release_takes_everything_under_an_owners_prefix_and_nothing_else(make_payloads: MakePayloads) -> None:
    """An attempt's payloads go together; those of lease 17 stay when lease 1 settles."""
    payloads = make_payloads()
    for owner in ("p.1/L1/0/", "p.1/L1/1/", "p.1/L17/0/", "weights/1"):
        await payloads.put(ref(owner), GROUP)
        await payloads.put(ref(owner, "more"), GROUP)
    await payloads.release("p.1/L1/")
    assert await payloads.owners() == {"p.1/L17/0/", "weights/1"}
    with pytest.raises(WorkerLost, match=re.escape("p.1/L1/0/")):
        await payloads.get(ref("p.1/L1/0/"))
    assert await payloads.get(ref("p.1/L17/0/", "more")) == GROUP


async def test_release_is_idempotent_and_knows_strangers(make_payloads: MakePayloads) -> None:
    """A payload is released exactly once when its lease settles; a repeated abort changes nothing (I42)."""
    payloads = make_payloads()
    await payloads.put(ref("a/"), GROUP)
    for _ in range(2):
        await payloads.release("a/")
        await payloads.release("of a dead run/")
    assert await payloads.owners() == frozenset()
    await payloads.put(ref("a/"), GROUP)
    assert await payloads.get(ref("a/")) == GROUP, "released is not banned"


async def test_what_was_never_put_is_lost(make_payloads: MakePayloads) -> None:
    payloads = make_payloads()
    await payloads.put(ref("a"), GROUP)
    for missing in (ref("b"), ref("a", "other")):
        with pytest.raises(WorkerLost):
            await payloads.get(missing)


async def test_what_was_spooled_outlives_its_release_and_its_store(make_payloads: MakePayloads, tmp_path: Path) -> None:
    """`durability = "groups"`: the process is gone, and the samples are the same to the last bit."""
    payloads, path = make_payloads(), str(tmp_path / "L0.0")
    await payloads.put(ref("p.1/L0/0/"), GROUP)
    for _ in range(2):
        await payloads.spool(ref("p.1/L0/0/"), path)
    await payloads.release("p.1/")
    assert os.listdir(tmp_path) == ["L0.0"]  # noqa: PTH208 - one name, and nothing half-written beside it
    other = make_payloads()
    for _ in range(2):
        await other.unspool(ref("p.1/L0/0/"), path)
    assert await other.get(ref("p.1/L0/0/")) == GROUP
    assert await other.owners() == {"p.1/L0/0/"}


async def test_every_flipped_byte_of_a_spooled_payload_is_found(make_payloads: MakePayloads, tmp_path: Path) -> None:
    """A torn or damaged file is never taken for a group's samples."""
    payloads, path = make_payloads(), tmp_path / "L0.0"
    await payloads.put(ref("a"), GROUP)
    await payloads.spool(ref("a"), str(path))
    whole = path.read_bytes()
    damaged = [whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :] for index in range(len(whole))]
    for data in [*damaged, whole[:-1], whole[:3], b""]:
        path.write_bytes(data)
        with pytest.raises(WorkerLost, match=re.escape(str(path))):
            await payloads.unspool(ref("b"), str(path))
    path.unlink()
    with pytest.raises(WorkerLost, match="cannot be read"):
        await payloads.unspool(ref("b"), str(path))
    assert await payloads.owners() == {"a"}


async def test_what_cannot_be_spooled_says_why(make_payloads: MakePayloads, tmp_path: Path) -> None:
    payloads = make_payloads()
    await payloads.put(ref("a"), GROUP)
    await payloads.put(ref("weights"), {"x": b"1"})
    folder = tmp_path / "spool"
    folder.mkdir()
    with pytest.raises(WorkerLost):
        await payloads.spool(ref("b"), str(folder / "b"))
    with pytest.raises(PortFailed, match="could not be kept"):
        await payloads.spool(ref("a"), str(folder / "no folder" / "a"))
    with pytest.raises(InvariantError, match="no payload of a group"):
        await payloads.spool(ref("weights"), str(folder / "weights"))
    assert os.listdir(folder) == []  # noqa: PTH208


async def test_every_call_reaches_a_checkpoint(make_payloads: MakePayloads, tmp_path: Path) -> None:
    payloads = make_payloads()
    await payloads.put(ref("a"), GROUP)
    calls = [
        lambda: payloads.put(ref("b"), GROUP),
        lambda: payloads.get(ref("a")),
        lambda: payloads.get(ref("missing")),
        lambda: payloads.release("missing"),
        payloads.owners,
        lambda: payloads.spool(ref("a"), str(tmp_path / "a")),
        lambda: payloads.spool(ref("missing"), str(tmp_path / "missing")),
        lambda: payloads.unspool(ref("a"), str(tmp_path / "missing")),
    ]
    for call in calls:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught

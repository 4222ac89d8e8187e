"""What a payload is stored as: in parcels, with checksums."""

import inspect
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from backends._tensors import same_bytes
from backends.ray.directory import PayloadDirectory
from backends.ray.stored import Listing, Parcel, Piece, checksum, parcel_of, parted, size_of, sums_in, unpacked

pytestmark = pytest.mark.cluster

MIB = 1 << 20


def weights() -> dict[str, Any]:
    return {
        "one": torch.ones(3, 5),
        "large": torch.arange(MIB, dtype=torch.int32),
        "turned": torch.arange(12.0).reshape(3, 4).t(),
        "largest": torch.zeros(3 * MIB, dtype=torch.bfloat16),
        "none": torch.empty(0, 7),
    }


def stored(value: dict[str, Any]) -> tuple[Listing, list[Parcel]]:
    pairs = [parcel_of(part) for part in parted(value)[1]]
    listing = Listing(None, "n", tuple(arrays for arrays, _ in pairs), sum(size_of(parcel) for _, parcel in pairs))
    return listing, [parcel for _, parcel in pairs]


def copied(parcel: Parcel) -> list[bytearray]:
    return [bytearray(piece.view) for piece in parcel]


def test_a_large_array_is_an_object_of_its_own_and_small_ones_are_together() -> None:
    """Peak memory: no object is larger than the largest array. And what stays as it was is not beside what moves."""
    listing, parcels = stored(weights())
    assert [[array.name for array in arrays] for arrays in listing.parcels] == [
        ["large"],
        ["largest"],
        ["one", "turned", "none"],
    ]
    got = unpacked(listing, parcels, [sums_in(parcel) for parcel in parcels])
    assert isinstance(got, dict)
    assert all(torch.equal(got[name], one) for name, one in weights().items())


def test_large_arrays_that_move_share_objects_and_none_of_them_with_one_that_stays() -> None:
    """Whoever reads asks the owner of each object; one that stays would be put again with those that move."""
    _, parts = parted(
        {**weights(), "stays": torch.ones(3), "also": torch.ones(MIB)}, {"large", "largest", "also", "one"}
    )
    assert [[name for name, _ in part] for part in parts] == [
        ["turned", "none", "stays"],
        ["one", "large", "largest", "also"],
    ]
    _, parts = parted({str(number): torch.empty(32 * MIB) for number in range(3)}, {"0", "1", "2"})
    assert [[name for name, _ in part] for part in parts] == [["0", "1"], ["2"]], "none is much larger than 256 MiB"


@given(parcel=st.integers(0, 2), at=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_a_bit_that_is_another_is_found(parcel: int, at: int, bit: int) -> None:
    """What was damaged on its way must not be served."""
    listing, parcels = stored(weights())
    sums = [sums_in(one) for one in parcels]
    buffers = copied(parcels[parcel])
    victim = buffers[0]
    victim[at % len(victim)] ^= 1 << bit
    damaged = list(parcels)
    damaged[parcel] = tuple(Piece(buffer) for buffer in buffers)
    with pytest.raises(ValueError, match="is damaged"):
        unpacked(listing, damaged, sums)


def test_pieces_in_another_order_are_found() -> None:
    """A sum alone would not see it."""
    first, second = bytes(range(256)) * 32, bytes(8192)
    rest = b"\1" * MIB
    assert checksum(memoryview(first + second + rest)) != checksum(memoryview(second + first + rest))


@given(size=st.integers(0, 5 * MIB), at=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_bytes_are_the_same_if_no_bit_is_another(size: int, at: int, bit: int) -> None:
    """What is taken for what it was in the version before is not sent again."""
    one, two = bytearray(size), bytearray(size)
    assert same_bytes(memoryview(one), memoryview(two))
    assert not same_bytes(memoryview(one), memoryview(two + b"0"))
    if size:
        two[at % size] ^= 1 << bit
        assert not same_bytes(memoryview(one), memoryview(two))


def test_no_method_of_the_directory_is_a_coroutine() -> None:
    """With one, Ray runs all of them in an event loop: twice the processor time for each message."""
    assert inspect.getmembers(PayloadDirectory, inspect.iscoroutinefunction) == []

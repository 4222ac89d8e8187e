"""What a payload is stored as: in parcels, with checksums."""

from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.ray.stored import Parcel, Piece, checksum, packed, parted, same, unpacked

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


def copied(parcel: Parcel) -> list[bytearray]:
    return [bytearray(piece.view) for piece in parcel]


def test_a_large_array_is_an_object_of_its_own_and_small_ones_are_together() -> None:
    """Peak memory: no object is larger than the largest array. And what stays as it was is not beside what moves."""
    made = packed(weights())
    assert [[array.name for array in arrays] for arrays, _ in made.parcels] == [
        ["large"],
        ["largest"],
        ["one", "turned", "none"],
    ]
    got = unpacked(made.listing("n"), [parcel for _, parcel in made.parcels], check=True)
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
    _, parts = parted({str(number): torch.empty(16 * MIB) for number in range(3)}, {"0", "1", "2"})
    assert [[name for name, _ in part] for part in parts] == [["0"], ["1"], ["2"]], "none is larger than it must be"


@given(parcel=st.integers(0, 2), at=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_a_bit_that_is_another_is_found(parcel: int, at: int, bit: int) -> None:
    """What was damaged on its way must not be served, nor be taken for the same as before."""
    made = packed(weights())
    parcels = [parcel for _, parcel in made.parcels]
    buffers = copied(parcels[parcel])
    victim = buffers[0]
    victim[at % len(victim)] ^= 1 << bit
    damaged = list(parcels)
    damaged[parcel] = tuple(Piece(buffer) for buffer in buffers)
    assert not same(damaged[parcel], parcels[parcel])
    with pytest.raises(ValueError, match="is damaged"):
        unpacked(made.listing("n"), damaged, check=True)


def test_pieces_in_another_order_are_found() -> None:
    """A sum alone would not see it."""
    first, second = bytes(range(256)) * 32, bytes(8192)
    rest = b"\1" * MIB
    assert checksum(memoryview(first + second + rest)) != checksum(memoryview(second + first + rest))


@given(size=st.integers(0, 40))
def test_equal_bytes_are_the_same(size: int) -> None:
    one, two = ((Piece(bytearray(range(size))),) for _ in range(2))
    assert same(one, two)

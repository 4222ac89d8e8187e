"""Random numbers that depend on a stream's name and a token's place in it, and on nothing else."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = np.float32(2.0**-24)


def stream_key(name: str) -> int:
    """Return the 64 bits that stand for a stream's name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def uniforms(keys: NDArray[np.uint64], places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return one number a row, uniform on the multiples of ``2**-24`` in ``[0, 1)``.

    Args:
        keys: Keys of the streams, shape ``[R]``.
        places: Number in its stream, from 0, shape ``[R]``.

    Source:
        SplitMix64 as a function of its counter: Steele, Lea and Flood, "Fast splittable pseudorandom
        number generators", OOPSLA 2014.
    """
    state = keys + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    state ^= state >> np.uint64(31)
    return (state >> np.uint64(40)).astype(np.float32) * _TO_UNIT

"""Random streams: uniform, independent, and the same everywhere."""

import numpy as np
import pytest

from backends.engines.torch.streams import stream_key, uniforms


def stream(name: str, count: int) -> np.ndarray:
    return uniforms(np.full(count, stream_key(name), dtype=np.uint64), np.arange(count))


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_numbers_are_the_same_on_every_machine() -> None:
    """A run that is resumed elsewhere draws what it would have drawn."""
    assert stream_key("0/0/0/0") == 0xA27D9D5FB0E56EF0
    assert (stream("0/0/0/0", 4) * 2**24).tolist() == [8606668, 6267515, 2483165, 12112204]


@pytest.mark.parametrize("by", ["place", "stream"])
def test_numbers_fill_the_unit_interval_evenly(by: str) -> None:
    """Along one stream, and over the first numbers of neighbouring streams."""
    if by == "place":
        drawn = stream("0/0/0/0", 200_000)
    else:
        keys = np.array([stream_key(f"0/{position}/0/0") for position in range(200_000)], dtype=np.uint64)
        drawn = uniforms(keys, np.zeros(200_000, dtype=np.int64))
    assert drawn.dtype == np.float32
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts, _ = np.histogram(drawn, bins=256, range=(0, 1))
    assert 150 < chi_square(counts) < 370, "255 degrees of freedom, five standard deviations"


def test_neighbours_do_not_follow_from_each_other() -> None:
    drawn = stream("0/0/0/0", 100_001).astype(np.float64)
    cells, _, _ = np.histogram2d(drawn[:-1], drawn[1:], bins=16, range=((0, 1), (0, 1)))
    assert 150 < chi_square(cells.ravel()) < 370
    other = stream("0/0/1/0", 100_001).astype(np.float64)
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.016

"""A report of a long run stays quick and small; the benchmark says how much so, of 2,000 steps and 512,000 samples."""

import pytest

from benchmarks import bench_report


@pytest.mark.real_time
def test_a_twentieth_of_the_long_run_is_within_its_bounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page that held every sample would have 100 MB, and no browser would open it."""
    pytest.importorskip("plotly")
    library_mb = len(bench_report.chart_library().encode()) / 1e6
    monkeypatch.setattr(bench_report, "STEPS", 100)
    monkeypatch.setattr(bench_report, "MOST_CPU_S", bench_report.MOST_CPU_S / 5)  # what no step adds to aside
    monkeypatch.setattr(bench_report, "MOST_MB", library_mb + (bench_report.MOST_MB - library_mb) / 10)
    assert bench_report.main() == 0, capsys.readouterr().out

"""The window of requests that a server is given: by properties, and over a server that works as it says."""

from hypothesis import given
from hypothesis import strategies as st

from backends.engines._http.window import FULL, Load, Window

loads = st.builds(Load, running=st.integers(0, 500), waiting=st.integers(0, 500), cache=st.floats(0, 1))


@given(st.integers(1, 400), st.lists(st.tuples(loads, st.integers(0, 400))))
def test_it_stays_between_one_and_its_ceiling(ceiling: int, reports: list[tuple[Load, int]]) -> None:
    window = Window(ceiling)
    for load, sent in reports:
        window.observe(load, sent)
        assert 1 <= window.size <= ceiling


@given(st.integers(1, 400), st.lists(st.tuples(loads, st.integers(0, 400))), st.tuples(loads, st.integers(0, 400)))
def test_it_grows_only_where_nothing_queues_and_all_of_it_is_used(
    ceiling: int, reports: list[tuple[Load, int]], last: tuple[Load, int]
) -> None:
    window = Window(ceiling)
    for load, sent in reports:
        window.observe(load, sent)
    before = window.size
    window.observe(*last)
    if window.size > before:
        load, sent = last
        assert load.waiting == 0
        assert load.cache <= FULL
        assert sent >= before


@given(st.integers(1, 300), st.integers(1, 600))
def test_it_comes_to_what_the_server_computes_at_once(takes: int, ceiling: int) -> None:
    """A server that runs ``takes`` requests and queues the rest: its queue becomes short, and it is never idle."""
    window = Window(ceiling)
    for turn in range(200):
        sent = window.size
        window.observe(Load(min(takes, sent), max(0, sent - takes), 0.5), sent)
        assert window.size >= min(takes, ceiling)
        if turn > 50:
            assert window.size <= takes + 2 * (ceiling // 32) + 2


@given(st.integers(10, 400))
def test_a_full_cache_takes_back_what_runs(ceiling: int) -> None:
    """Nothing waits, and the next token may push a request out."""
    window = Window(ceiling)
    for _ in range(2):
        window.observe(Load(window.size, 0, 0.99), window.size)
    assert window.size < ceiling


def test_one_report_of_a_queue_alone_changes_nothing() -> None:
    """What has just come waits for a moment on every server."""
    window = Window(64)
    window.observe(Load(0, 64, 0.1), 64)
    window.observe(Load(64, 0, 0.1), 64)
    window.observe(Load(0, 64, 0.1), 64)
    assert window.size == 64

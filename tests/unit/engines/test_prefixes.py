"""Remembered aborts."""

from hypothesis import given
from hypothesis import strategies as st

from backends.engines._prefixes import AbortedPrefixes

WORDS = st.text("ab/", max_size=5)


@given(st.lists(WORDS), WORDS)
def test_a_match_is_a_remembered_prefix(prefixes: list[str], name: str) -> None:
    aborted = AbortedPrefixes()
    for prefix in prefixes:
        aborted.add(prefix)
    found = aborted.match(name)
    assert (found is not None) == any(name.startswith(prefix) for prefix in prefixes)
    assert found is None or (found in prefixes and name.startswith(found))


@given(st.lists(WORDS, min_size=1), st.integers(1, 4))
def test_the_latest_are_kept_and_no_more(prefixes: list[str], limit: int) -> None:
    """agent-lightning#438: a store that evicts nothing grew to 220 GB (I73)."""
    aborted = AbortedPrefixes(limit)
    for prefix in prefixes:
        aborted.add(prefix)
    latest = list(dict.fromkeys(reversed(prefixes)))[:limit]
    for prefix in prefixes:
        assert (aborted.match(prefix) is not None) == any(prefix.startswith(one) for one in latest)

"""The garbage collector's settings are the whole process's: they are given back as they were found."""

import gc

import pytest

from conductor.collector import seldom_collected


def test_the_collector_is_left_as_it_was_found() -> None:
    """A run is a guest in the process of whoever calls it."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with seldom_collected(True):
        assert gc.get_threshold() > before
        assert gc.get_freeze_count() > frozen
    with pytest.raises(ZeroDivisionError), seldom_collected(True):
        raise ZeroDivisionError
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)


def test_it_is_left_alone_where_the_job_says_so() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with seldom_collected(False):
        assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)

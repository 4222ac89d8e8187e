"""The garbage collector's settings are the whole process's: they are given back as they were found."""

import gc
from collections.abc import Generator

import pytest

from conductor.collector import seldom_collected


@pytest.fixture(autouse=True)
def _nothing_is_hidden() -> Generator[None]:
    """The suite hides itself from the collector: conftest.py."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def test_the_collector_is_left_as_it_was_found() -> None:
    """A run is a guest in the process of whoever calls it."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with seldom_collected(True):
        assert gc.get_threshold() > before
        assert gc.get_freeze_count() > frozen
    with pytest.raises(ZeroDivisionError), seldom_collected(True):
        raise ZeroDivisionError
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)


def test_what_its_host_hid_stays_hidden_and_nothing_else_does() -> None:
    """Hidden things are given back all at once: a run gave back what a server had hidden before it forked."""
    gc.freeze()
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with seldom_collected(True):
        assert gc.get_threshold() > before
        assert gc.get_freeze_count() == frozen
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)


def test_it_is_left_alone_where_the_job_says_so() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with seldom_collected(False):
        assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)

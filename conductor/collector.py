"""Keeping Python's garbage collector away from what is no garbage."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

_SELDOM = (50_000, 20, 100)


@contextmanager
def seldom_collected(wanted: bool) -> Generator[None]:
    """Hide what is alive now from the collector, and let it look at the rest seldom, while the block runs.

    It is the whole process's setting. A full collection with torch loaded stops everything for 0.1 s or more; and as it
    is set by default, the collector looks at every group in flight again and again: at 20,000 of them that was a third
    of what a group cost.

    Args:
        wanted: Whether to do it at all.
    """
    if not wanted:
        yield
        return
    thresholds, hidden = gc.get_threshold(), gc.get_freeze_count() > 0
    if not hidden:
        gc.collect()
        gc.freeze()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not hidden:
            gc.unfreeze()

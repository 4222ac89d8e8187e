"""Which clock a test runs on: virtual, unless it is marked ``real_time``."""

import asyncio
import gc
import os
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import Phase, settings

from backends.sim.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from benchmarks._ray_cluster import RayCluster

# No deadline: a machine that is busy with other work must not decide. No database: failures are not kept
# between runs, so that a run depends on the tree alone.
settings.register_profile(
    "suite", deadline=None, max_examples=50, database=None, phases=(Phase.explicit, Phase.generate, Phase.shrink)
)
settings.load_profile("suite")

# Tiny models gain nothing from a second thread, and on a busy machine torch's threads wait for one another:
# measured, 60 s for what takes 0.3 s alone. Set before anything imports torch; processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def _factory_for(item: pytest.Item) -> LoopFactory:
    return asyncio.SelectorEventLoop if item.get_closest_marker("real_time") else VirtualTimeLoop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Give one factory: with more, every unmarked test would run once on each."""
    return {"loop": _factory_for(item)}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Choose again for a parameter that is marked: the hook above is asked before there are parameters.

    Where tests run on several processes, a file stays on one, and all that needs a cluster does: it shares one.
    """
    item.add_marker(pytest.mark.xdist_group("cluster" if item.get_closest_marker("cluster") else str(item.path)))
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "_asyncio_loop_factory" in callspec.params:
        callspec.params["_asyncio_loop_factory"] = _factory_for(item)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long: else one process goes on alone at the end."""
    long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("cluster")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Hide from the collector of garbage what is there before the first test.

    A full collection took 0.3 s, and tests that look for what is left make several each. Measured: half of what those
    tests cost, and a sixth of what simulated runs do.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Generator[None]:
    """The command line configures structlog for its process, simulations keep it quiet; a test is not that process."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def ray_cluster() -> Generator["RayCluster"]:
    """A cluster of two nodes for all tests that only use one; what kills nodes starts its own."""
    pytest.importorskip("ray")
    from benchmarks._ray_cluster import open_cluster  # noqa: PLC0415 - an extra brings Ray

    with open_cluster(nodes=2) as cluster:
        yield cluster

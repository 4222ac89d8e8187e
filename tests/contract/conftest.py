"""The ports of the Ray backend, for the suites of all ports."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from protocols.backend import LauncherPort, PayloadPort, PlacementPort, Resources
from protocols.sections import Site

if TYPE_CHECKING:
    from benchmarks._ray_cluster import RayCluster


@pytest.fixture(scope="session")
def ray_cluster() -> Generator["RayCluster"]:
    """A cluster of one node: on each, every connection starts processes that look for what dead runs left."""
    pytest.importorskip("ray")
    from benchmarks._ray_cluster import open_cluster  # noqa: PLC0415 - an extra brings Ray

    with open_cluster(nodes=1) as cluster:
        yield cluster


@pytest.fixture
def ray_placement(ray_cluster: "RayCluster") -> Generator[Callable[[Resources], PlacementPort]]:
    """Make a placement over one node that has what is asked for."""
    from backends.ray.placement import RayPlacement  # noqa: PLC0415 - an extra brings Ray

    with ExitStack() as stack:

        def make(total: Resources) -> PlacementPort:
            session = stack.enter_context(ray_cluster.connected())
            pool = ray_cluster.pool(
                num_cpus=total.cpus, num_gpus=total.accelerators, memory=int(total.memory_gib * 2**30)
            )
            return RayPlacement(stack.enter_context(pool).labels, "rack", session.node, 30.0)

        yield make


@pytest.fixture
def ray_payloads(ray_cluster: "RayCluster") -> Generator[Callable[[], PayloadPort]]:
    """Make payload stores that know nothing of one another."""
    from backends.ray.backend import open_directory  # noqa: PLC0415 - an extra brings Ray
    from backends.ray.payloads import RayPayloads  # noqa: PLC0415

    with ray_cluster.connected() as session, ExitStack() as stack:
        yield lambda: RayPayloads(stack.enter_context(open_directory(session)))


@pytest.fixture
def ray_launcher(ray_cluster: "RayCluster") -> Callable[[], AbstractAsyncContextManager[LauncherPort]]:
    """Open a launcher."""
    from backends import ray as backend  # noqa: PLC0415

    @asynccontextmanager
    async def opened() -> AsyncGenerator[LauncherPort]:
        cfg = backend.Config(address=ray_cluster.address, patience_s=1.0)
        async with backend.open(cfg, Site(job_dir="/")) as made:
            yield made.launcher

    return opened

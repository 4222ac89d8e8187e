"""A controller on a Ray cluster, to be killed: ``python -m tests.support.doomed_ray ADDRESS NODE``.

It reserves a CPU of a node for a probe, which starts processes that are nobody's children; then it prints the number of
the probe's own process and waits.
"""

import sys

import anyio

from backends import ray as backend
from protocols.backend import Backend, ReserveRequest, Resources, WorkloadSpec
from protocols.grading import GradeRequest
from protocols.messages import WorkerId
from protocols.sections import Section, Site
from tests.support.probe import KIND, asking, told

SITE = Site(job_dir="/")
PROBE = WorkerId("reward/0")


async def ask(made: Backend, request: GradeRequest) -> str:
    """Return what the probe answers."""
    return told(await made.launcher.call(PROBE, "grade", (request,)))


async def main(address: str, node: str) -> None:
    """Run until killed."""
    async with backend.open(backend.Config(address=address), SITE) as made:
        await made.placement.reserve(ReserveRequest(reservation_id=PROBE, resources=Resources(cpus=1), node=node))
        await made.launcher.launch(
            WorkloadSpec(worker_id=PROBE, section="reward", adapter=Section(kind=KIND), site=SITE, reservation_id=PROBE)
        )
        await ask(made, asking("spawn", "setsid --fork sleep 600"))
        sys.stdout.write(f"{await ask(made, asking('pid'))}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])

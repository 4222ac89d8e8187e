"""A controller on a Ray cluster, to be killed: ``python -m tests.support.doomed_ray ADDRESS NODE``.

It reserves a CPU of a node for a probe, which starts two processes of its own; then it prints their numbers and waits.
"""

import json
import sys

import anyio

from backends import ray as backend
from protocols.backend import ReserveRequest, Resources, WorkloadSpec
from protocols.messages import WorkerId
from protocols.sections import Section, Site
from tests.support.probe import KIND, asking, told

SITE = Site(job_dir="/")
PROBE = WorkerId("reward/0")


async def main(address: str, node: str) -> None:
    """Run until killed."""
    async with backend.open(backend.Config(address=address), SITE) as made:
        await made.placement.reserve(ReserveRequest(reservation_id=PROBE, resources=Resources(cpus=1), node=node))
        await made.launcher.launch(
            WorkloadSpec(worker_id=PROBE, section="reward", adapter=Section(kind=KIND), site=SITE, reservation_id=PROBE)
        )
        pids: dict[str, list[int]] = {}
        for name, request in (("worker", asking("pid")), ("strays", asking("spawn", "sleep 600"))):
            answer = told(await made.launcher.call(PROBE, "grade", (request,)))
            pids[name] = [int(pid) for pid in answer.split()]
        sys.stdout.write(f"{json.dumps(pids)}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])

"""A controller to be killed: ``python -m tests.support.doomed PLACE FUNCTION FIFO``.

It runs a probe, which starts two processes of its own, and a reward that hangs; then it prints their numbers and waits.
"""

import json
import sys

import anyio

from backends import processes
from protocols.backend import WorkloadSpec
from protocols.grading import GradeRequest
from protocols.messages import LeaseId, PayloadRef, WorkerId
from protocols.prompts import Prompt, TextPrompt
from protocols.rollouts import GroupPayload, SamplePayload
from protocols.sections import Section, Site
from tests.support.probe import KIND, asking, told

SITE = Site(job_dir="/")
GROUP = PayloadRef(owner="p.1/L0/0/", key="group")
PAYLOAD = GroupPayload(
    prompt_ids=(1,),
    prompt_text="1",
    temperature=1.0,
    samples=(SamplePayload(token_ids=(1,), logprobs=(0.0,), text="1"),),
)
GRADE = GradeRequest(
    lease_id=LeaseId("L0"),
    attempt=0,
    prompt=Prompt(position=0, content=TextPrompt(text="1")),
    payload=GROUP,
    samples=(0,),
)


def spec(name: str, adapter: Section) -> WorkloadSpec:
    """Return a worker of the section ``reward``."""
    return WorkloadSpec(worker_id=WorkerId(name), section="reward", adapter=adapter, site=SITE, reservation_id=name)


async def main(place: str, function: str, fifo: str) -> None:
    """Run until killed."""
    async with processes.open(processes.Config(payload_dir=place), SITE) as backend:
        launcher = backend.launcher
        await backend.payloads.put(GROUP, PAYLOAD)
        await launcher.launch(spec("probe", Section(kind=KIND)))
        options = {"function": function, "deadline_s": 600.0}
        await launcher.launch(spec("reward/0", Section(kind="function", options=options)))
        pids: dict[str, list[int]] = {}
        for name, request in (("worker", asking("pid")), ("strays", asking("spawn", "sleep 600"))):
            answer = told(await launcher.call(WorkerId("probe"), "grade", (request,)))
            pids[name] = [int(pid) for pid in answer.split()]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(launcher.call, WorkerId("reward/0"), "grade", (GRADE,))
            pids["reward"] = [int(await anyio.Path(fifo).read_text())]
            sys.stdout.write(f"{json.dumps(pids)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])

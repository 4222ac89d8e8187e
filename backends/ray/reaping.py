"""What runs left on a cluster that goes on without them, ended by whoever connects next.

Ray itself ends the actors and placement groups of a controller that is gone. What a worker had *started* it does not
know; that carries the mark of its run, which has the number of Ray's job in it. All of it blocks.
"""

from typing import Any

import ray
import ray.exceptions as rx
import structlog
from ray._private.state import state as cluster_state  # Ray has no public way to ask which jobs have ended
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from backends._leftovers import end_marked
from backends.ray.nodes import living

log = structlog.get_logger(__name__)

_WITHIN_S = 15.0


def mark_of(job: str) -> str:
    """Return what all processes carry that the workers of one of the cluster's jobs start."""
    return f"ray-{ray.get_runtime_context().gcs_address}-{job}:"


def reap() -> None:
    """End what carries the mark of a job that has ended, on every node; a run that lives is another job."""
    try:
        _reap()
    except rx.RayError as exc:
        log.warning("cluster.not_reaped", error=str(exc))


def _reap() -> None:
    ended = [mark_of(job["JobID"]) for job in cluster_state.job_table() if job["IsDead"]]
    if not ended:
        return
    ending: Any = ray.remote(end_marked)
    asked: dict[Any, str] = {}
    for node in living({}):
        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        asked[ending.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(*ended)] = node.name
    answers, silent = ray.wait([*asked], num_returns=len(asked), timeout=_WITHIN_S)
    for answer in answers:
        try:
            left = ray.get(answer)
        except rx.RayError as exc:  # that node goes, and what is on it
            left = [type(exc).__name__]
        if left:
            log.warning("processes.left", node=asked[answer], left=left)
    for answer in silent:
        log.warning("node.not_reaped", node=asked[answer], within_s=_WITHIN_S)

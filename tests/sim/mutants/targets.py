"""Where bugs are planted, and the tests that are to find them there: those that are quick and close to the module."""

from collections.abc import Mapping

_CORE = "tests/unit/core"
_POOL = (
    "tests/unit/engines/test_pool.py",
    "tests/unit/engines/test_pool_failures.py",
    "tests/unit/engines/test_pool_keepers.py",
    "tests/unit/engines/test_pool_scaling.py",
    "tests/contract/test_inference_controller.py",
)
_FLEET = "tests/unit/fleet"
_PLANNING = tuple(f"tests/unit/planning/test_{name}.py" for name in ("edited", "mistakes", "placing", "scaling"))


def _runs(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/sim/test_{name}.py" for name in names)


TARGETS: Mapping[str, tuple[str, ...]] = {
    "conductor.core.admission": (_CORE, *_runs("pipeline", "idle_steps")),
    "conductor.core.epochs": (_CORE, *_runs("pipeline")),
    "conductor.core.evaluation": _runs("evaluation"),
    "conductor.core.failover": (
        f"{_CORE}/test_failover.py",
        f"{_FLEET}/test_failover.py",
        f"{_FLEET}/test_rewinding.py",
    ),
    "conductor.core.groups": (_CORE, *_runs("staleness", "ages")),
    "conductor.core.lease": (_CORE, *_runs("admit", "pipeline", "staleness")),
    "conductor.core.leases": (_CORE, *_runs("pipeline", "resume")),
    "conductor.core.node_check": (f"{_CORE}/test_node_check.py",),
    "conductor.core.patience": (f"{_CORE}/test_patience.py",),
    "conductor.core.planning.placing": _PLANNING,
    "conductor.core.planning.plan": _PLANNING,
    "conductor.core.planning.request": _PLANNING,
    "conductor.core.planning.rooms": _PLANNING,
    "conductor.core.planning.sharing": _PLANNING,
    "conductor.core.planning.verify": _PLANNING,
    "conductor.core.planning.verify_places": _PLANNING,
    "conductor.core.planning.wishes": _PLANNING,
    "conductor.core.publication": (_CORE, *_runs("pipeline", "publishing", "evaluation", "restaging")),
    "conductor.core.quarantine": (f"{_CORE}/test_quarantine.py",),
    "conductor.core.registry": (f"{_CORE}/test_registry.py",),
    "conductor.core.settlements": (_CORE, *_runs("resume")),
    "conductor.core.staleness": (_CORE, *_runs("ages", "staleness")),
    "conductor.core.tally": (_CORE, *_runs("pipeline", "idle_steps", "resume")),
    "conductor.core.waits": (_CORE, "tests/unit/test_bounded.py", *_runs("watchdog")),
    "conductor.stages.admit": _runs("admit", "pipeline", "idle_steps", "resume"),
    "conductor.stages.batch": _runs("ends", "pipeline", "idle_steps", "ages", "staleness", "cost"),
    "conductor.stages.checkpoint": _runs("saving", "keeping", "resume", "checkpoint_while_training"),
    "conductor.stages.evaluate": _runs("evaluation", "reserved_engines", "keeping"),
    "conductor.stages.publish": _runs(
        "ages", "steps", "publishing", "pipeline", "evaluation", "reserved_engines", "restaging"
    ),
    "conductor.stages.reward": _runs("ends", "stop", "pipeline", "abort", "retries", "durability"),
    "conductor.stages.rollout": _runs("ends", "stop", "pipeline", "abort", "staleness"),
    "conductor.stages.train": _runs(
        "steps", "saving", "warnings", "pipeline", "idle_steps", "settling", "retries", "durability", "restaging"
    ),
    "conductor.abort": _runs("ages", "ends", "stop", "pipeline", "abort", "staleness", "retries"),
    "conductor.keeping": _runs("keeping"),
    "conductor.settling": _runs("settling_acts", "settling", "abort", "evaluation", "durability"),
    "conductor.past": (f"{_FLEET}/test_planned.py", *_runs("going_on", "resume", "evaluation")),
    "conductor.resuming": _runs("going_on", "resume", "keeping", "evaluation", "durability"),
    "conductor.fleet.attendance": (_FLEET, "tests/contract/test_roles.py", *_runs("scaling")),
    "conductor.fleet.failover": (_FLEET, *_runs("scaling")),
    "conductor.fleet.group": (_FLEET, *_runs("scaling")),
    "conductor.fleet.planned": (_FLEET,),
    "conductor.fleet.reservation": (_FLEET, *_runs("scaling")),
    "conductor.fleet.spread": (_FLEET,),
    "conductor.fleet.moving": (f"{_FLEET}/test_moving.py",),
    "conductor.fleet.rewinding": (f"{_FLEET}/test_rewinding.py",),
    "conductor.fleet.together": (_FLEET,),
    "conductor.fleet.undo": (_FLEET,),
    "backends.engines.pool": (*_POOL, *_runs("publishing", "scaling")),
}
"""Module -> files or folders of tests.

Left out are ``core.explanation`` and ``core.status``: they choose words and decide nothing.
"""

SLOW = (
    "test_what_is_restored_is_never_too_old_and_trained_once",
    "test_killed_behind_any_event_it_trains_what_it_would_have_trained",
    "test_stopped_at_any_time_it_has_saved_what_it_trained_and_goes_on_as_if_nothing_had_been",
    "test_any_job_killed_anywhere_trains_the_same",
    "test_killed_over_and_over_it_still_ends",
    "test_killed_anywhere_while_steps_and_a_checkpoint_go_on_it_trains_the_same",
    "test_ages_are_bounded_whatever_is_filtered_and_however_long_things_take",
    "test_no_group_is_trained_over_age",
    "test_dropping_the_slow_shortens_the_data_and_waiting_does_not",
    "test_what_is_begun_anew_keeps_its_prompt_and_its_attempts",
    "test_loose_trains_what_comes_whatever_its_age",
    "runTest",  # of the state machine of leases
)
"""Tests of those files that are left out: each takes as long as all others together."""

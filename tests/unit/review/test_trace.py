"""The timeline: what Perfetto's form demands of a file, and what the record says of the run."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from conductor.review.chronicle import Chronicle
from conductor.review.trace import trace
from tests.unit.review.test_shares import simulated


@pytest.fixture(scope="module", params=[0, 4])
def told(request: pytest.FixtureRequest) -> Chronicle:
    return simulated(request.param, sample="lognormal:1.0:2", reward="0.5")


def drawn(told: Chronicle) -> list[dict[str, Any]]:
    return json.loads(trace(told))["traceEvents"]


def names(events: list[dict[str, Any]]) -> dict[int, str]:
    return {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}


def test_every_event_has_what_its_phase_demands(told: Chronicle) -> None:
    """The documented form: a complete event has ``ts`` and ``dur``, a flow an id, and all a process and a thread."""
    for one in drawn(told):
        assert {"name", "ph", "pid", "tid"} <= one.keys()
        match one["ph"]:
            case "M":
                assert one["args"]
            case "X":
                assert one["ts"] >= 0
                assert one["dur"] > 0, "Perfetto nests it in the next one, and leads that one's ways to it"
            case "s" | "t" | "f":
                assert {"ts", "id", "cat"} <= one.keys()
                assert (one.get("bp") == "e") == (one["ph"] == "f")
            case phase:
                pytest.fail(f"phase {phase}")


def test_slices_of_one_lane_never_overlap(told: Chronicle) -> None:
    """Perfetto drops a slice that begins within another and ends behind it."""
    lanes: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for one in drawn(told):
        if one["ph"] == "X":
            lanes[one["pid"], one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
    assert len(lanes) > 6
    for spans in lanes.values():
        ordered = sorted(spans)
        for (_, ended), (began, _) in pairwise(ordered):
            assert began >= ended


def test_a_way_leads_from_the_engine_of_each_trained_group_to_its_step(told: Chronicle) -> None:
    events = drawn(told)
    slices = {(one["pid"], one["tid"], one["ts"], one["name"]): one for one in events if one["ph"] == "X"}
    assert len(slices) == sum(one["ph"] == "X" for one in events)
    processes = names(events)
    ends: defaultdict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for one in events:
        if one["ph"] in {"s", "t", "f"}:
            assert one["ph"] not in ends[one["id"]]
            ends[one["id"]][one["ph"]] = one
    trained = [(attempt, step) for step in told.steps for attempt in step.attempts]
    assert len(ends) == len(trained)
    found = set()
    for way in ends.values():
        assert way["s"]["ts"] <= way["t"]["ts"] <= way["f"]["ts"]
        assert processes[way["s"]["pid"]].startswith("rollout/")
        assert processes[way["t"]["pid"]] == "graders"
        assert processes[way["f"]["pid"]] == "trainer"
        found.add((_slice_at(slices, way["s"]), _slice_at(slices, way["f"])))
    assert found == {(f"{attempt.lease_id}/{attempt.number}", f"step {step.number}") for attempt, step in trained}


def _slice_at(slices: dict[Any, dict[str, Any]], flow: dict[str, Any]) -> str:
    """The slice that a flow event is bound to: of its lane, with its time in it, and of any length."""
    (name,) = {
        one["name"]
        for (pid, tid, ts, _), one in slices.items()
        if (pid, tid) == (flow["pid"], flow["tid"]) and one["dur"] > 0 and ts <= flow["ts"] < ts + one["dur"]
    }
    return name


def test_every_part_has_its_lane_and_what_it_did(told: Chronicle) -> None:
    events = drawn(told)
    processes = names(events)
    assert list(processes.values()) == ["rollout/0", "rollout/1", "graders", "trainer", "publisher"]
    done: defaultdict[str, float] = defaultdict(float)
    for one in events:
        if one["ph"] == "X":
            done[processes[one["pid"]]] += one["dur"] / 1e6
    assert done["trainer"] == pytest.approx(told.counted[-1].closed_s)
    graded = [attempt for attempt in told.all_attempts() if attempt.graded_s is not None]
    assert done["graders"] == pytest.approx(sum(one.graded_s - one.finished_s for one in graded))
    published = sum(one["ph"] == "X" and processes[one["pid"]] == "publisher" for one in events)
    assert published == sum(one.ended_s > one.began_s for one in told.publishes) >= 3

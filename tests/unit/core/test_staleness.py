"""Law 3: under every policy but ``loose`` no group is trained over age, whatever the schedule."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.core.admission import Admission
from conductor.core.staleness import SAMPLERS, Group, Loose, Policy, Wait
from conductor.core.tally import Tally
from protocols.messages import LeaseId, WeightVersion


def group(number: int, version: int, *, ready: bool = True) -> Group:
    return Group(lease_id=LeaseId(f"L{number}"), number=number, version=WeightVersion(version), ready=ready)


def test_the_oldest_ready_groups_come_first() -> None:
    groups = [group(0, 0), group(1, 0, ready=False), group(2, 0), group(3, 1)]
    assert Loose().select(groups, wanted=2, most=2, version=WeightVersion(1)) == ["L0", "L2"]
    assert not Loose().select(groups, wanted=4, most=4, version=WeightVersion(1))


def test_the_trainer_waits_for_a_group_that_is_due_now() -> None:
    """At version 2 a group of version 0 has its last chance at ``max_age`` 2."""
    groups = [group(0, 0), group(1, 0, ready=False), group(2, 1), group(3, 1)]
    assert Wait(2, batch=2).select(groups, wanted=2, most=2, version=WeightVersion(2)) == ()
    assert Wait(3, batch=2).select(groups, wanted=2, most=2, version=WeightVersion(2)) == ["L0", "L2"]


def test_the_trainer_does_not_wait_while_what_is_left_can_be_trained_in_time() -> None:
    """Three that run and are due at the next version are one too many for a batch of two."""
    two = [group(0, 0), group(1, 0), group(2, 0, ready=False), group(3, 0, ready=False)]
    assert Wait(1, batch=2).select(two, wanted=2, most=2, version=WeightVersion(0)) == ["L0", "L1"]
    three = [group(0, 1), group(1, 1), *(group(at, 0, ready=False) for at in (2, 3, 4))]
    assert Wait(1, batch=2).select(three, wanted=2, most=2, version=WeightVersion(0)) == ()


def test_a_batch_that_leaves_gaps_still_takes_all_that_is_due() -> None:
    """A filtered group that is not replaced makes a batch shorter, but not at the price of another's age."""
    groups = [group(at, 0) for at in range(4)]
    assert Wait(1, batch=3).select(groups, wanted=1, most=3, version=WeightVersion(0)) == ["L0"]
    assert Wait(0, batch=3).select(groups[:3], wanted=1, most=3, version=WeightVersion(0)) == ["L0", "L1", "L2"]


def test_the_trainer_does_not_wait_for_what_no_waiting_can_save() -> None:
    """Else one group that cannot be trained in time would hold the run for ever."""
    late = [group(0, 0, ready=False), group(1, 4), group(2, 4)]
    assert Wait(1, batch=2).select(late, wanted=2, most=2, version=WeightVersion(4)) == ["L1", "L2"]


def test_a_group_over_age_is_replaced_or_begun_anew() -> None:
    groups = [group(0, 0), group(1, 0, ready=False), group(2, 2)]
    at = WeightVersion(3)
    assert (SAMPLERS["drop"](2, 1).evict(groups, version=at), SAMPLERS["drop"](2, 1).interrupt(groups, version=at)) == (
        ["L0"],
        (),
    )
    assert SAMPLERS["partial"](2, 1).interrupt(groups, version=at) == ["L0", "L1"]
    for policy in ("drop", "partial"):
        assert SAMPLERS[policy](2, 1).select(groups, wanted=1, most=1, version=at) == ["L2"]


@pytest.mark.parametrize("policy", SAMPLERS)
def test_admission_looks_through_no_open_group(policy: Policy) -> None:
    """It is asked whenever a slot is free, and with 10,000 engines there are 20,000 open groups."""

    def untouched() -> Iterator[Group]:
        raise AssertionError("it looked")
        yield group(0, 0)

    assert SAMPLERS[policy](1, 2).admit(3, untouched(), version=WeightVersion(0)) == 3


@pytest.mark.parametrize(("max_age", "bound"), [(0, 0), (1, 1), (2.5, 3)])
def test_a_fraction_is_rounded_up(max_age: float, bound: int) -> None:
    """ROLL's 2.5-off: half a batch more is generated ahead, and trained one version later at the most."""
    assert SAMPLERS["drop"](max_age, 1).evict([group(0, 0)], version=WeightVersion(bound)) == []
    assert SAMPLERS["drop"](max_age, 1).evict([group(0, 0)], version=WeightVersion(bound + 1)) == ["L0"]


@dataclass
class Schedule:
    """A run in which chance decides which event comes next: a group finishes, a step ends, weights arrive.

    Attributes:
        ages: At consumption.
    """

    policy: Policy
    max_age: float
    batch: int
    slots: int
    rng: random.Random
    ages: list[int] = field(default_factory=list)

    def run(self, steps: int) -> None:
        sampler = SAMPLERS[self.policy](self.max_age, self.batch)
        law = Admission(slots=self.slots, batch=self.batch, max_age=self.max_age, target=steps * self.batch)
        version, serving, number, training = 0, 0, 0, False
        running: dict[int, int] = {}
        ready: dict[int, int] = {}
        for _ in range(200 * steps * self.batch):
            if version == steps:
                return
            tally = Tally(committed=version * self.batch, claims=version, claimed=version * self.batch)
            law.version = serving
            accepted = len(ready) + version * self.batch + (self.batch if training else 0)
            for _ in range(law.grants(tally, accepted=accepted, running=len(running))):
                running[number] = serving
                number += 1
            groups = self._groups(running, ready)
            at = WeightVersion(version)
            if not training:
                for name in sampler.evict(groups, version=at):
                    del ready[int(name[1:])]
                for name in sampler.interrupt(groups, version=at):
                    running.pop(int(name[1:]), None)
                    ready.pop(int(name[1:]), None)
                    running[int(name[1:])] = serving
                groups = self._groups(running, ready)
                chosen = sampler.select(groups, wanted=self.batch, most=self.batch, version=at)
                if chosen:
                    self.ages += [version - ready.pop(int(name[1:])) for name in chosen]
                    training = True
            events = ["finish"] * bool(running) + ["trained"] * training + ["published"] * (serving < version)
            if not events:  # all of it was given up: more is admitted
                continue
            match self.rng.choice(events):
                case "finish":
                    done = self.rng.choice(sorted(running))
                    ready[done] = running.pop(done)
                case "trained":
                    training, version = False, version + 1
                case _:
                    serving = version
        raise AssertionError(f"{version} of {steps} steps: the run goes nowhere")

    def _groups(self, running: dict[int, int], ready: dict[int, int]) -> Sequence[Group]:
        known = [group(number, version, ready=False) for number, version in running.items()]
        known += [group(number, version) for number, version in ready.items()]
        return sorted(known, key=lambda one: one.number)


@pytest.mark.parametrize("policy", ["wait", "drop", "partial"])
@settings(max_examples=150, deadline=None)
@given(
    max_age=st.sampled_from([0, 0.5, 1, 2, 2.5, 4]),
    batch=st.integers(1, 5),
    slots=st.integers(1, 30),
    seed=st.integers(0, 2**32),
)
def test_no_age_is_above_the_bound_and_every_run_comes_to_its_end(
    policy: Policy, max_age: float, batch: int, slots: int, seed: int
) -> None:
    """Law 3, for all schedules. Admission alone does not bound age (measured: 31 at max_age 4)."""
    schedule = Schedule(policy, max_age, batch, slots, random.Random(seed))
    schedule.run(steps=12)
    assert max(schedule.ages) <= math.ceil(max_age)
    assert len(schedule.ages) == 12 * batch


def test_admission_alone_does_not_bound_age() -> None:
    """What the policies are for; a test of the test above."""
    ages: list[int] = []
    for seed in range(30):
        schedule = Schedule("loose", 2, 4, 12, random.Random(seed))
        schedule.run(steps=12)
        ages += schedule.ages
    assert max(ages) > 2

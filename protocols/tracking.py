"""Metrics that leave the process."""

from typing import Protocol

from protocols.messages import Message


class StepRecord(Message, frozen=True, kw_only=True):
    """The metrics of one step.

    Attributes:
        step: From 1: the trainer's version after the step.
        metrics: By name, units in the name.
    """

    step: int
    metrics: dict[str, float]


class TrackerPort(Protocol):
    """Takes metrics. One caller. It never stops a run: an outage is the adapter's to bridge."""

    async def log(self, record: StepRecord) -> None:
        """Take one record; returns at once or soon."""
        ...

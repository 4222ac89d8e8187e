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

    async def rewind(self, step: int) -> int:
        """Take back every record after ``step``, as far as possible: the run goes on from there.

        Called before the first ``log`` of a resumed run.

        Returns:
            The last step that is held; the records after it, up to ``step``, are logged again.
        """
        ...

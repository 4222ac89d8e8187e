"""Who watches a run from outside."""

from typing import Protocol

from conductor.result import Accounts
from protocols.tracking import StepRecord


class Observer(Protocol):
    """Is told what a run does, on the event loop and between two of its steps.

    Both methods return at once. What they raise is logged once, counted, and changes nothing: what goes wrong with
    watching is the watcher's own.
    """

    def phase(self, name: str) -> None:
        """Learn what the run begins to do now, for people: ``warming up``."""
        ...

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Learn that a train step is committed and published."""
        ...


class Unwatched:
    """The observer of a run that nobody watches."""

    def phase(self, name: str) -> None:
        """Do nothing."""

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Do nothing."""


_: type[Observer] = Unwatched

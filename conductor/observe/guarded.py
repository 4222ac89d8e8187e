"""Whoever watches a run can do it no harm."""

from collections import Counter
from collections.abc import Callable

import anyio
from structlog.typing import FilteringBoundLogger

from conductor.observe.observer import Observer
from conductor.result import Accounts
from protocols.tracking import StepRecord


class Guarded:
    """Passes on what an observer is told (``Observer``); what that raises goes no further.

    Each method's first failure is logged with its traceback, the others are counted, and it goes on being told. So it
    never keeps a run from giving back what it holds, and never changes how it ends. An interrupt from the keyboard
    passes: it may come anywhere.

    Args:
        observer: Who watches.
        log: The run's.
    """

    def __init__(self, observer: Observer, log: FilteringBoundLogger) -> None:
        self._observer = observer
        self._log = log
        self._failures: Counter[str] = Counter()

    def phase(self, name: str) -> None:
        """Pass it on."""
        self._tell("phase", lambda: self._observer.phase(name))

    def stepped(self, record: StepRecord, accounts: Accounts) -> None:
        """Pass it on."""
        self._tell("stepped", lambda: self._observer.stepped(record, accounts))

    def conclude(self) -> None:
        """Say how often it failed."""
        if self._failures:
            self._log.warning("observer.failures", **self._failures)

    def _tell(self, method: str, tell: Callable[[], None]) -> None:
        try:
            tell()
        except (Exception, SystemExit, anyio.get_cancelled_exc_class()) as exc:  # noqa: ASYNC103, BLE001 - nothing is awaited
            self._failures[method] += 1
            if self._failures[method] == 1:
                self._log.warning("observer.failed", method=method, error=type(exc).__name__, exc_info=exc)


_: type[Observer] = Guarded

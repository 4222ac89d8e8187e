"""The first failure of a run: the one place that opens exception groups."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast


class Failures:
    """Remembers failures in the order of failing, which an exception group does not keep."""

    def __init__(self) -> None:
        self._failures: list[tuple[str, Exception]] = []

    @property
    def any(self) -> bool:
        """Whether something failed: from then on the run is being ended."""
        return bool(self._failures)

    @property
    def first(self) -> Exception | None:
        """What failed first; None: nothing did."""
        return self._failures[0][1] if self._failures else None

    def remember(self, name: str, error: Exception) -> None:
        """Remember a failure on its way out: what fails from now on came later. Of a group, its new leaves."""
        for leaf in _leaves(error):
            if isinstance(leaf, Exception) and not self._knows(leaf):
                self._failures.append((name, leaf))

    @contextmanager
    def watch(self, name: str) -> Generator[None]:
        """Remember what fails in the block, and let it pass."""
        try:
            yield
        except Exception as exc:
            self.remember(name, exc)
            raise

    def verdict(self, group: BaseExceptionGroup[BaseException]) -> BaseException:
        """Return the failure that ends the run: the first one, with the others as notes.

        Args:
            group: What came out of the root task group.

        Returns:
            The first remembered failure unchanged; a group of one leaf that nobody remembered is that
            leaf; otherwise the group itself. What was noted on the group stands on what is returned.
        """
        leaves = _leaves(group)
        if not self._failures and len(leaves) != 1:
            return group
        (_, first), *others = self._failures or [("a task", leaves[0])]
        for note in getattr(group, "__notes__", ()):
            first.add_note(note)
        for name, exc in [*others, *(("a task", leaf) for leaf in leaves if not self._knows(leaf))]:
            note_later(first, name, exc)
        return first

    def _knows(self, error: BaseException) -> bool:
        return any(error is known for _, known in self._failures)


def note_later(first: BaseException, name: str, later: BaseException) -> None:
    """Note on the failure that ends a run what else failed after it, with all that was noted on that."""
    notes = getattr(later, "__notes__", ())
    first.add_note("\n".join([f"{name} then failed with {type(later).__name__}: {later}", *notes]))


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for exc in group.exceptions for leaf in _leaves(exc)]

"""The first failure of a run: the one place that opens exception groups."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast


class Failures:
    """Remembers failures in the order of failing, which an exception group does not keep."""

    def __init__(self) -> None:
        self._failures: list[tuple[str, Exception]] = []

    @contextmanager
    def watch(self, name: str) -> Generator[None]:
        """Remember what fails in the block, and let it pass. Groups were remembered leaf by leaf."""
        try:
            yield
        except ExceptionGroup:
            raise
        except Exception as exc:
            if all(exc is not known for _, known in self._failures):
                self._failures.append((name, exc))
            raise

    def verdict(self, group: BaseExceptionGroup[BaseException]) -> BaseException:
        """Return the failure that ends the run: the first one, with the others as notes.

        Args:
            group: What came out of the root task group.

        Returns:
            The first remembered failure unchanged; a group of one leaf that nobody remembered is that
            leaf; otherwise the group itself.
        """
        leaves = _leaves(group)
        if not self._failures:
            return leaves[0] if len(leaves) == 1 else group
        (_, first), *others = self._failures
        noted = [(name, exc) for name, exc in others if exc is not first]
        known = {id(exc) for _, exc in self._failures}
        noted += [("a task", leaf) for leaf in leaves if id(leaf) not in known]
        for name, exc in noted:
            first.add_note(f"{name} then failed with {type(exc).__name__}: {exc}")
        return first


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            leaves += _leaves(cast("BaseExceptionGroup[BaseException]", exc))
        else:
            leaves.append(exc)
    return leaves

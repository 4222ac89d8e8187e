"""The mapping that a process put last: what of the next one is as it was, is not put again."""

from collections.abc import Iterable, Mapping
from typing import Any

import ray
import ray.exceptions as rx

from backends._tensors import same_bytes
from backends.ray.stored import Array, Parcel, is_object

AT_HAND_S = 5.0
"""For what this process put itself, and holds."""

Arrays = tuple[Array, ...]


class Previous:
    """Knows what the mapping held, and where. It does not change: several threads compare with it.

    Args:
        objects: By what is in them, what holds the bytes.
        moved: Names of the arrays that were not in it as in the one before; they will move again.
    """

    def __init__(self, objects: Mapping[Arrays, Any] | None = None, moved: Iterable[str] = ()) -> None:
        self.objects: Mapping[Arrays, Any] = objects or {}
        self.moved = frozenset(moved)
        self._at = {array.name: (arrays, index) for arrays in self.objects for index, array in enumerate(arrays)}

    def others(self, arrays: Arrays, parcel: Parcel) -> tuple[str, ...]:
        """Return the names of those that are not as they were, or of which that cannot be known."""
        known: dict[Arrays, Parcel | None] = {}
        others: list[str] = []
        for array, piece in zip(arrays, parcel, strict=True):
            beside, index = self._at.get(array.name, ((), 0))
            if not beside or beside[index] != array:
                others.append(array.name)
                continue
            if beside not in known:
                known[beside] = self._parcel(beside)
            was = known[beside]
            if was is None or not same_bytes(piece.view, was[index].view):
                others.append(array.name)
        return tuple(others)

    def _parcel(self, arrays: Arrays) -> Parcel | None:
        stored = self.objects[arrays]
        if not is_object(stored):
            return stored
        try:
            return ray.get(stored, timeout=AT_HAND_S)
        except rx.RayError:
            return None

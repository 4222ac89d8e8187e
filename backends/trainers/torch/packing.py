"""Samples of one prompt share its tokens: they lie behind it in one strip, and none sees another.

The model reads a prompt once for several completions, instead of once for each. A completion's tokens attend to
the prompt and to their own, at the positions that they would have alone, so every number is what it was, up to
the order of additions.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from backends.trainers.torch.rows import Row


@dataclass(frozen=True, slots=True)
class Strip:
    """Samples with one prompt and one temperature, read one after the other in one row of a forward pass."""

    rows: tuple[Row, ...]

    @property
    def width(self) -> int:
        """Tokens that the model reads: the last one of a completion predicts nothing."""
        return len(self.rows[0].prompt) + sum(len(row.completion) - 1 for row in self.rows)


def pack(rows: Iterable[Row], budget: int, *, hidden: int | None) -> Iterator[Sequence[Strip]]:
    """Split rows into micro-batches.

    The longest come first: what does not fit into memory fails at once. Rows of one length keep their order.

    Args:
        rows: In any order.
        budget: Most tokens of a micro-batch, padding counted; a longer row is one of its own.
        hidden: Width of the model; None: no two rows share a strip.
    """
    rest = sorted(_strips(rows, budget, hidden), key=lambda strip: strip.width, reverse=True)
    while rest:
        count = max(1, budget // rest[0].width)
        yield rest[:count]
        rest = rest[count:]


def _strips(rows: Iterable[Row], budget: int, hidden: int | None) -> Iterator[Strip]:
    if hidden is None:
        yield from (Strip((row,)) for row in rows)
        return
    by_prompt: dict[tuple[tuple[int, ...], float], list[Row]] = {}
    for row in rows:
        by_prompt.setdefault((row.prompt, row.temperature), []).append(row)
    for (prompt, _), group in by_prompt.items():
        group.sort(key=lambda row: len(row.completion), reverse=True)
        yield from _cut(group, min(budget - len(prompt), useful_tokens(len(prompt), hidden)))


def _cut(group: Sequence[Row], room: int) -> Iterator[Strip]:
    """Cut rows of one prompt into strips that read at most ``room`` tokens behind it, but hold at least one row."""
    strip: list[Row] = []
    taken = 0
    for row in group:
        tokens = len(row.completion) - 1
        if strip and taken + tokens > room:
            yield Strip(tuple(strip))
            strip, taken = [], 0
        strip.append(row)
        taken += tokens
    yield Strip(tuple(strip))


def useful_tokens(prompt: int, hidden: int) -> int:
    """Return how many completion tokens a strip may hold before sharing costs more than it saves.

    A layer of width ``h`` spends ``24 h^2`` operations on a token and ``4 h W`` on its attention over ``W`` positions,
    so a strip of a prompt ``P`` and ``x`` more tokens costs ``(P + x) (6 h + P + x)`` for ``x`` tokens trained. That is
    least for each of them where ``x^2 = P (P + 6 h)``.
    """
    return math.isqrt(prompt * (prompt + 6 * hidden))

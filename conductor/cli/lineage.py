"""The way of one sample, and of one step, as tables for people."""

import json
import shutil
from collections.abc import Iterator, Sequence

from conductor.review.lineage import GroupLine, SampleLineage, StepLineage

_NAME_WIDTH = 10


def sample_lines(found: SampleLineage) -> Iterator[str]:
    """Tell of one sample, from its prompt to the step that trained it."""
    yield f"sample {found.sample}"
    yield from _fact("prompt", found.prompt)
    for name, value in found.fields.items():
        yield from _fact(name, value if isinstance(value, str) else json.dumps(value))
    yield from _fact("text", found.text)
    made = f"{found.tokens} tokens, ended by {'its stop' if found.finish == 'stop' else 'the limit of its length'}"
    yield from _fact("made", f"{made}, on {found.engine}" if found.engine else made)
    yield from _fact("versions", ", ".join(f"v{version} x {count}" for version, count in found.versions) or "none")
    if found.reward is None:
        yield from _fact("reward", f"none: {found.fault}")
    else:
        yield from _fact("reward", f"{found.reward:g}")
    for name, part in found.parts.items():
        yield from _fact("", f"{name} {part:g}")
    if found.step is None:
        yield from _fact("trained", f"not: {found.attempts[-1].fate}")
    else:
        weight = "it is masked" if found.advantage is None else f"advantage {found.advantage:+.4f}"
        yield from _fact("trained", f"in step {found.step}, {found.age} versions old, {weight}")
    yield from _fact("batches", ", ".join(found.batches) or "none claimed it")
    rows = [
        (
            str(one.attempt),
            f"v{one.version}",
            _seconds(one.began_s),
            _seconds(one.finished_s),
            _seconds(one.graded_s),
            one.fate,
        )
        for one in found.attempts
    ]
    yield ""
    yield from table(("attempt", "weights", "sent out at", "finished at", "graded at", "became"), rows)


def step_lines(found: StepLineage) -> Iterator[str]:
    """Tell of one step: its batch, a line a group, and its metrics."""
    yield f"step {found.step} trained {found.batch or 'a batch'} of {len(found.groups)} groups"
    yield ""
    head = ("group", "age", "tokens", "reward", "min", "max", "masked", "adv. max", "generate", "grade", "prompt")
    yield from table(head, list(map(_group_row, found.groups)))
    yield ""
    yield from table(("metric", "value"), [(name, f"{value:.6g}") for name, value in sorted(found.metrics.items())])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table whose columns are as wide as what they hold; the last one is cut at the terminal."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    most = shutil.get_terminal_size((160, 24)).columns
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()[:most]


def _group_row(group: GroupLine) -> tuple[str, ...]:
    rewards = [reward for reward in group.rewards if reward is not None]
    weights = [abs(weight) for weight in group.advantages if weight is not None]
    return (
        f"{group.lease_id}/{group.attempt}",
        str(group.age),
        str(group.tokens),
        *((f"{sum(rewards) / len(rewards):.3f}", f"{min(rewards):g}", f"{max(rewards):g}") if rewards else ("-",) * 3),
        str(len(group.rewards) - len(rewards)),
        f"{max(weights):.3f}" if weights else "-",
        _seconds(group.generate_s),
        _seconds(group.grade_s),
        " ".join(group.prompt.split()),
    )


def _fact(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines() or [""]):
        yield f"{'' if number else name:<{_NAME_WIDTH}}{line}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f} s"

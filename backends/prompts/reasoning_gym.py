"""Tasks of reasoning-gym: a hundred generators of puzzles and sums, each with a verifier.

A task becomes a conversation: the system message, if there is one, solved tasks as examples, and the question.
``dataset``, ``config``, ``question``, ``answer`` and ``metadata`` go to the reward, which is meant to be
``kind = "reasoning_gym"``.

Tasks depend on the run's seed and their number alone. A few generators go through sets of text, whose order Python
changes from process to process unless ``PYTHONHASHSEED`` is set; the fingerprint tells.
"""

import difflib
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio.to_thread
from msgspec import Meta

from backends._extras import find_missing
from backends._functions import user_error
from backends.prompts import function
from backends.prompts._content import prompt_of
from backends.prompts.function import FunctionPrompts
from protocols.adapters import Host
from protocols.errors import Problem, UserError
from protocols.messages import Message
from protocols.sections import Site

_TRIED = 3  # tasks that are generated and scored when a job is checked
_OURS = {"seed": "the run's seed decides it", "size": "set prompts.size"}


class Config(Message, frozen=True, kw_only=True):
    """Options of ``[prompts] kind = "reasoning_gym"``.

    Attributes:
        dataset: Name of the generator: ``chain_sum``.
        config: Options of that generator.
        size: Different tasks; one epoch.
        epochs: Passes over them; None goes on for ever.
        system: The system message that comes first.
        examples: Solved tasks before each question, as turns of the conversation; the same ones for every
            question and every seed.
    """

    dataset: str
    config: dict[str, Any] = {}
    size: Annotated[int, Meta(ge=1)] = 1000
    epochs: Annotated[int, Meta(ge=1)] | None = None
    system: str | None = None
    examples: Annotated[int, Meta(ge=0)] = 0


def open_tasks(cfg: Config, seed: int) -> Callable[[int], dict[str, Any]]:
    """Return what makes task number ``index`` of a run with this seed: the prompt, and the fields for its reward."""
    from backends._reasoning_gym import create, task_of  # noqa: PLC0415 - heavy

    generator = create(cfg.dataset, cfg.config, seed=_range_of(cfg.dataset, str(seed)), size=cfg.size)
    before = list(_before(cfg))

    def task(index: int) -> dict[str, Any]:
        made = task_of(generator[index])
        prompt = [*before, {"role": "user", "content": made["question"]}]
        return {"prompt": prompt, "dataset": cfg.dataset, "config": cfg.config, **made}

    return task


def _before(cfg: Config) -> Iterator[dict[str, str]]:
    from backends._reasoning_gym import create  # noqa: PLC0415 - heavy

    if cfg.system is not None:
        yield {"role": "system", "content": cfg.system}
    if cfg.examples:
        generator = create(cfg.dataset, cfg.config, seed=_range_of(cfg.dataset, "examples"), size=cfg.examples)
        for entry in (generator[index] for index in range(cfg.examples)):
            yield {"role": "user", "content": entry["question"]}
            yield {"role": "assistant", "content": str(entry["answer"])}


def _range_of(*name: str) -> int:
    """Return where a range of tasks starts: task ``index`` comes from the seed that lies ``index`` behind.

    A hash keeps the ranges of two runs apart; those of neighbouring seeds would be the same but for one task.
    """
    return zlib.crc32("/".join(name).encode()) >> 1


def check(cfg: Config, site: Site) -> Sequence[Problem]:
    """Return what is wrong: no such generator or option, or a verifier that refuses the generator's own answers."""
    if missing := find_missing("reasoning_gym", field="prompts.kind", kind="reasoning_gym", extra="reasoning"):
        return missing
    from backends._reasoning_gym import known_datasets  # noqa: PLC0415 - heavy

    known = known_datasets()
    if cfg.dataset not in known:
        mend = _nearest(cfg.dataset, known) or "see reasoning_gym.factory.DATASETS for all of them"
        value, why = repr(cfg.dataset), "reasoning-gym has no such dataset"
        return [Problem(field="prompts.dataset", value=value, why=why, mend=mend)]
    return list(_option_problems(cfg)) or list(_task_problems(cfg, site))


def _option_problems(cfg: Config) -> Iterator[Problem]:
    from backends._reasoning_gym import known_options  # noqa: PLC0415 - heavy

    known = [name for name in known_options(cfg.dataset) if name not in _OURS]
    for name, value in cfg.config.items():
        field = f"prompts.config.{name}"
        if name in _OURS:
            yield Problem(field=field, value=repr(value), why="it is not the generator's to set", mend=_OURS[name])
        elif name not in known:
            mend = _nearest(name, known) or f"it has {', '.join(known)}"
            yield Problem(field=field, value=repr(value), why=f"'{cfg.dataset}' has no such option", mend=mend)


def _task_problems(cfg: Config, site: Site) -> Iterator[Problem]:
    try:
        task = open_tasks(cfg, site.seed)
        tried = [task(index) for index in range(min(_TRIED, cfg.size))]
    except Exception as exc:  # noqa: BLE001 - each generator checks its options in a way of its own
        why, mend = f"'{cfg.dataset}' refuses it: {user_error(exc)}", "see the generator's configuration"
        yield Problem(field="prompts.config", value=repr(cfg.config), why=why, mend=mend)
        return
    try:
        lowest = min(_own_score(record) for record in tried)
    except Exception as exc:  # noqa: BLE001 - verifiers raise what they like
        yield _unfit(cfg, f"its verifier fails on its own answer: {user_error(exc)}")
        return
    if lowest < 1:
        yield _unfit(cfg, f"its own answer scores {lowest:g}, so right answers earn nothing, or too little")


def _own_score(record: dict[str, Any]) -> float:
    from backends._reasoning_gym import score  # noqa: PLC0415 - heavy

    fields = prompt_of(record, "prompt", position=0, epoch=0).fields  # as the reward gets them
    return score(completion=str(fields["answer"]), **fields)


def _unfit(cfg: Config, why: str) -> Problem:
    mend = "choose another dataset, or write the reward yourself behind a prompts adapter of your own"
    return Problem(field="prompts.dataset", value=repr(cfg.dataset), why=why, mend=mend)


def _nearest(name: str, known: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{near[0]}'?" if near else None


@asynccontextmanager
async def open(cfg: Config, host: Host) -> AsyncGenerator[FunctionPrompts]:  # noqa: A001 - the adapters' common name
    """Create the generator, off the loop.

    Raises:
        UserError: There is none, or it refuses its options.
    """
    try:
        task = await anyio.to_thread.run_sync(open_tasks, cfg, host.site.seed)
    except Exception as exc:  # as above
        raise UserError(f"prompts.dataset = {cfg.dataset!r}: {user_error(exc)}") from exc
    counted = function.Config(function=f"reasoning_gym:{cfg.dataset}", epoch_length=cfg.size, epochs=cfg.epochs)
    yield FunctionPrompts(lambda index, _: task(index), counted, host.site.seed)

"""What is wrong with a job as a whole: between its fields, and in the sections that adapters define."""

import difflib
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from conductor.algorithms.table import ALGORITHMS
from conductor.bounds import (
    best_are_found,
    evaluation_nests,
    find_capacity_problems,
    grading_nests,
    nested,
    reserved_fits,
)
from conductor.config import EvaluationConfig, RunConfig, algorithm_of, default_ledger
from conductor.core.planning.request import request_of
from conductor.core.planning.wishes import FIELDS, OWN_SECTION, POLICY
from conductor.core.staleness import SAMPLERS
from conductor.decoding import decode, decode_fields
from conductor.fleet import hooks, master
from conductor.fleet.users import find_unusable
from conductor.jobfile import holds_run
from protocols.adapters import Adapter, UnknownAdapter, known_kinds, missing_module, resolve
from protocols.errors import Problem
from protocols.inference import Sampling
from protocols.sections import Section, Site

SECTIONS = ("model", "prompts", "reward", "episode", "engine", "train", "backend", "ledger")
"""Sections with one adapter each, in the order in which their problems are listed."""

_USE_THE_MODEL = ("episode", "engine", "train")
_CONTEXT_NAMES = ("n_positions", "max_position_embeddings")


def find_problems(cfg: RunConfig, *, given: Collection[str] = (), resume: bool = False) -> list[Problem]:
    """Find everything that is wrong with a job, without starting anything.

    Args:
        cfg: The job; it may have been built in code, where constructors check nothing.
        given: Sections whose workloads were handed over in code and need no adapter.
        resume: Whether the run may go on with what its folder holds.

    Returns:
        Each problem once: the fields' own, then between fields, then section by section.
    """
    fields, problems = decode_fields(RunConfig, msgspec.structs.asdict(cfg))
    return [*problems, *find_problems_between(fields, given=given, resume=resume)]


def find_problems_between(
    fields: Mapping[str, Any], *, given: Collection[str] = (), resume: bool = False
) -> list[Problem]:
    """Find what is wrong between those fields of a ``RunConfig`` that are right by themselves.

    Nothing is said about what depends on a field that is not in ``fields``.
    """
    problems: list[Problem] = []
    for rule in _RULES:
        needed = inspect.signature(rule).parameters
        if needed.keys() <= fields.keys():
            problems += rule(**{name: fields[name] for name in needed})
    problems += _resumable(fields) if resume else _used(fields)
    problems += _reserved_by_hand(fields.get("evaluation"), given)
    site = _site(fields, resume=resume)
    handed_over = given
    given = {*given, *_brought(fields, site)}
    for name in SECTIONS:
        if name in fields and name not in given:
            section = fields[name]
            if name == "ledger" and section is None:
                section = default_ledger(fields.get("run_dir"))
            found = _section(name, section, site, needs_model=_needs_model(fields, given))
            wrong = {_owner(problem) for problem in problems} | (set(SECTIONS) - fields.keys())
            problems += _fresh(found, name, wrong, {problem.field for problem in problems})
    if "engine" not in given:
        problems += find_capacity_problems(fields, site.job_dir)
    problems += _evaluation_sections(fields.get("evaluation"), site, given)
    problems += _fleet(fields, site, handed_over)
    if "trackers" not in given:
        for number, section in enumerate(fields.get("trackers", ())):
            problems += _adapter_problems(f"trackers[{number}]", "tracker", section, site)
    return problems


def find_remainder_problem(cfg: RunConfig, epoch_length: int | None) -> Problem | None:
    """Find whether dropping the remainder of each epoch would drop everything.

    Args:
        cfg: The job.
        epoch_length: Prompts in one epoch, as the opened source says.
    """
    if cfg.remainder != "drop" or epoch_length is None or epoch_length >= cfg.batch_groups:
        return None
    why = f"an epoch has {epoch_length} prompts and a batch {cfg.batch_groups} groups, so nothing would ever be trained"
    mend = f"set it to 'train' or 'carry', or batch_groups to at most {epoch_length}"
    return Problem(field="remainder", value="'drop'", why=why, mend=mend)


def site_of(cfg: RunConfig, *, resume: bool = False) -> Site:
    """Return the facts about the run that adapters need, with absolute folders.

    Args:
        cfg: The job.
        resume: Whether the run goes on with what its folder holds, if it holds one.
    """
    return _site(msgspec.structs.asdict(cfg), resume=resume)


def _site(fields: Mapping[str, Any], *, resume: bool) -> Site:
    job_dir = _absolute(fields.get("job_dir"))
    folder = _run_folder(fields)
    return Site(
        job_dir=str(job_dir),
        run_dir=None if folder is None else str(folder),
        resume=resume and folder is not None and holds_run(folder),
        seed=fields.get("seed", 0),
        steps=fields.get("steps"),
        max_tokens=sampling.max_tokens if isinstance(sampling := fields.get("sampling"), Sampling) else None,
        model=fields.get("model"),
    )


def _run_folder(fields: Mapping[str, Any]) -> Path | None:
    run_dir = fields.get("run_dir")
    return None if run_dir is None else (_absolute(fields.get("job_dir")) / run_dir).resolve()


def _absolute(job_dir: str | None) -> Path:
    return Path(job_dir or ".").absolute()


def _algorithm(train: Section) -> Iterable[Problem]:
    """Find an algorithm that the controller does not know; the trainer's adapter may know more."""
    name = algorithm_of(train)
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(str(name), ALGORITHMS, n=1)
        mend = f"did you mean '{near[0]}'?" if near else f"choose one of {', '.join(ALGORITHMS)}"
        yield Problem(field="train.algorithm", value=repr(name), why="there is no such algorithm", mend=mend)


def _one_sample(group_size: int, train: Section) -> Iterable[Problem]:
    algorithm = algorithm_of(train)
    if group_size == 1 and algorithm in ALGORITHMS and ALGORITHMS[algorithm].compares:
        why = f"'{algorithm}' compares the samples of a group, and one has nothing to compare with"
        yield Problem(field="group_size", value="1", why=why, mend="give at least 2")


def _sampler(staleness: str) -> Iterable[Problem]:
    if staleness not in SAMPLERS and ":" not in staleness:
        near = difflib.get_close_matches(staleness, SAMPLERS, n=1)
        mend = f"did you mean '{near[0]}'?" if near else f"choose one of {', '.join(SAMPLERS)}, or name module:sampler"
        yield Problem(field="staleness", value=repr(staleness), why="there is no such policy", mend=mend)


def _ahead(max_age: float, oversample: float, batch_groups: int) -> Iterable[Problem]:
    if oversample > 1 and max_age > 0:
        why = f"max_age = {max_age:g} generates {batch_groups * max_age:g} groups ahead already"
        yield Problem(field="oversample", value=f"{oversample:g}", why=why, mend="leave it out, or set max_age to 0")


def _equal_samples(group_size: int, sampling: Sampling) -> Iterable[Problem]:
    why = f"all {group_size} samples of a group would be the same, and equal rewards teach nothing"
    if group_size > 1 and sampling.temperature == 0:
        yield Problem(field="sampling.temperature", value="0", why=why, mend="give a number above 0")
    elif group_size > 1 and sampling.top_k == 1:
        yield Problem(field="sampling.top_k", value="1", why=why, mend="give at least 2, or 0 to keep all tokens")


def _equal_evaluation_samples(sampling: Sampling, evaluation: EvaluationConfig | None) -> Iterable[Problem]:
    if evaluation is None or evaluation.samples == 1:
        return
    drawn = evaluation.sampling or sampling
    if drawn.temperature == 0 or drawn.top_k == 1:
        why = f"all {evaluation.samples} completions of a prompt would be the same"
        value = str(evaluation.samples)
        yield Problem(field="evaluation.samples", value=value, why=why, mend="give 1, or another evaluation.sampling")


def _context(sampling: Sampling, model: Section | None) -> Iterable[Problem]:
    for name, context in _contexts(model).items():
        if sampling.max_tokens >= context:
            why = f"model.config.{name} is {context}, which the prompt and the completion share"
            mend = f"give at most {context - 1}, less what the longest prompt takes"
            yield Problem(field="sampling.max_tokens", value=str(sampling.max_tokens), why=why, mend=mend)
            return


def _evaluation_context(evaluation: EvaluationConfig | None, model: Section | None) -> Iterable[Problem]:
    if evaluation is not None and evaluation.sampling is not None:
        for problem in _context(evaluation.sampling, model):
            yield msgspec.structs.replace(problem, field=f"evaluation.{problem.field}")


def _contexts(model: Section | None) -> dict[str, int]:
    """Return the length of the context where the job itself states it, by the name it goes under."""
    described: Any = None if model is None else model.options.get("config")
    if not isinstance(described, Mapping):
        return {}
    sizes = cast("Mapping[str, Any]", described)
    return {name: sizes[name] for name in _CONTEXT_NAMES if isinstance(sizes.get(name), int)}


def _folder(run_dir: str | None, job_dir: str | None) -> Iterable[Problem]:
    """Find what would make the last act of a run fail, its checkpoint."""
    if run_dir is None:
        return
    folder = _absolute(job_dir) / run_dir
    there = next(path for path in (folder, *folder.parents) if path.exists())
    why = None
    if not there.is_dir():
        why = f"{there} is no folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        why = f"{there} cannot be written to"
    if why is not None:
        yield Problem(field="run_dir", value=repr(run_dir), why=why, mend="name another folder")


def _resumable(fields: Mapping[str, Any]) -> Iterable[Problem]:
    if fields.get("run_dir", "") is None:
        why, mend = "without a folder there is nothing to go on with", "name the folder of the run"
        yield Problem(field="run_dir", value=None, why=why, mend=mend)


def _used(fields: Mapping[str, Any]) -> Iterable[Problem]:
    """Find that the folder holds a run, which another would write over."""
    folder = _run_folder(fields)
    if folder is not None and (holds_run(folder) or (folder / "checkpoints").exists()):
        mend = "go on with it (conductor resume FOLDER, run --resume), or name another folder"
        yield Problem(field="run_dir", value=repr(fields["run_dir"]), why="it holds a run", mend=mend)


def make_folder(run_dir: str) -> Problem | None:
    """Make the run's folder, before anything is trained that could not be kept; return what stands against it."""
    try:
        Path(run_dir).mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        return Problem(
            field="run_dir", value=repr(run_dir), why=f"it cannot be made: {exc}", mend="name another folder"
        )
    return None


_RULES: tuple[Callable[..., Iterable[Problem]], ...] = (
    _algorithm,
    _one_sample,
    _sampler,
    _ahead,
    _equal_samples,
    _equal_evaluation_samples,
    _context,
    _evaluation_context,
    _folder,
    nested,
    grading_nests,
    evaluation_nests,
    reserved_fits,
    best_are_found,
)
"""What must hold between fields. A rule's parameters name the fields it reads: it is asked only if all are right."""


def _brought(fields: Mapping[str, Any], site: Site) -> frozenset[str]:
    """Return the sections that the backend has workloads of its own for."""
    if "backend" not in fields:
        return frozenset()
    try:
        adapter = resolve("backend", fields["backend"].kind, site.job_dir)
    except UnknownAdapter:
        return frozenset()
    return getattr(adapter, "BRINGS", frozenset[str]())


def _needs_model(fields: Mapping[str, Any], given: Collection[str]) -> bool:
    """Say whether a part of the job needs ``[model]``; a user's own adapters say so themselves."""
    users = (fields[name] for name in _USE_THE_MODEL if name in fields and name not in given)
    return any(":" not in section.kind for section in users)


def _section(
    name: str, section: Section | None, site: Site, *, room: str | None = None, needs_model: bool = True
) -> list[Problem]:
    room = room or name
    if section is not None:
        return _adapter_problems(name, room, section, site)
    if name == "model" and not needs_model:
        return []
    mend = f"add a section [{name}] with a kind: {', '.join(known_kinds(room))}, or module:name"
    return [Problem(field=name, value=None, why="is missing", mend=mend)]


def _adapter_problems(place: str, room: str, section: Section, site: Site) -> list[Problem]:
    """Ask the adapter of one section.

    Args:
        place: Where the section stands in the job, ``trackers[0]``.
        room: Under which name its adapters are known, ``tracker``.
        section: The adapter and its options.
        site: Facts about the run.
    """
    try:
        adapter = resolve(room, section.kind, site.job_dir)
    except UnknownAdapter as exc:
        return [msgspec.structs.replace(exc.problem, field=f"{place}.kind")]
    lacking = _lacking(adapter, room)
    if lacking:
        why, mend = f"it has no '{lacking[0]}'", "name a module with Config, check and open"
        return [Problem(field=f"{place}.kind", value=repr(section.kind), why=why, mend=mend)]
    options, problems = decode(adapter.Config, section.options, place)
    if options is None:
        return problems
    try:
        return list(adapter.check(options, site))
    except ModuleNotFoundError as exc:
        return [missing_module(f"{place}.kind", section.kind, exc)]


def _evaluation_sections(evaluation: EvaluationConfig | None, site: Site, given: Collection[str]) -> Iterable[Problem]:
    if evaluation is None:
        return
    if "evaluation.prompts" not in given:
        yield from _section("evaluation.prompts", evaluation.prompts, site, room="prompts")
    if "evaluation.reward" not in given and evaluation.reward is not None:
        yield from _adapter_problems("evaluation.reward", "reward", evaluation.reward, site)


def _fleet(fields: Mapping[str, Any], site: Site, given: Collection[str]) -> Iterable[Problem]:
    """Find what is wrong with the roles, whatever there is to place them on."""
    if not fields.keys() >= set(FIELDS):
        return
    request = request_of(fields, given)
    yield from request.problems
    for number, hook in enumerate(fields["fleet"].hooks):
        yield from find_unusable(f"fleet.hooks[{number}]", hook, hooks.POINTS, site.job_dir)
    for name, role in fields["fleet"].roles.items():
        if role.master is not None:
            yield from find_unusable(f"fleet.roles.{name}.master", role.master, master.POINTS, site.job_dir)
    for wish in request.wishes:
        if wish.name == POLICY:
            yield from _ranks(wish.adapter, wish.instances, site)
        if wish.section == OWN_SECTION:
            place = f"fleet.roles.{wish.name}"
            for problem in _adapter_problems(place, OWN_SECTION, wish.adapter, site):
                yield msgspec.structs.replace(problem, field=problem.field.replace(f"{OWN_SECTION}.", f"{place}.", 1))


def _reserved_by_hand(evaluation: EvaluationConfig | None, given: Collection[str]) -> Iterable[Problem]:
    """Find that engines are to be reserved where the job launches none."""
    if evaluation is not None and evaluation.engines is not None and "engine" in given:
        why, mend = "the engines were handed over in code", "leave it out"
        yield Problem(field="evaluation.engines", value=str(evaluation.engines), why=why, mend=mend)


def _ranks(train: Section, instances: int, site: Site) -> Iterable[Problem]:
    """Find that so many workers of a trainer do not make one; what else is wrong with it is said elsewhere."""
    with suppress(UnknownAdapter):
        adapter = resolve("train", train.kind, site.job_dir)
        if hasattr(adapter, "check_ranks"):
            options, _ = decode(adapter.Config, train.options, "train")
            yield from [] if options is None else cast("Any", adapter).check_ranks(options, instances)
        elif instances > 1:
            why, mend = f"several workers of the trainer {train.kind!r} do not train one policy", "leave it out"
            yield Problem(field=f"fleet.roles.{POLICY}.instances", value=str(instances), why=why, mend=mend)


def _lacking(adapter: Adapter, room: str) -> list[str]:
    opens = ("load_module", "load_tokenizer") if room == "model" else ("open",)
    return [name for name in ("Config", "check", *opens) if not hasattr(adapter, name)]


def _fresh(found: Iterable[Problem], section: str, wrong: Collection[str], reported: Collection[str]) -> list[Problem]:
    """Leave out repetitions, and what an adapter says about another section that is known to be wrong."""
    fresh: list[Problem] = []
    for problem in found:
        owner = _owner(problem)
        if problem.field not in reported and problem not in fresh and (owner == section or owner not in wrong):
            fresh.append(problem)
    return fresh


def _owner(problem: Problem) -> str:
    return problem.field.partition(".")[0]

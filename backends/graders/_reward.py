"""Calling a user's reward function, and turning whatever comes of it into a grade or a classed fault.

It imports neither anyio nor a backend's parts: worker processes load it too.
"""

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from backends._functions import Caught
from protocols.grading import FaultKind, Grade, GradeFault
from protocols.messages import Message

_DETAIL = 2000  # characters of a fault's detail


class Task(Message, frozen=True, kw_only=True):
    """Completions of one prompt to grade.

    Attributes:
        prompt: Text, chat messages as dicts, or token ids: as the job had it.
        fields: Further fields of the prompt.
        completions: Texts.
    """

    prompt: str | list[Any]
    fields: dict[str, Any]
    completions: list[str]


class MissingField(Exception):
    """The reward wants what the prompt does not have."""


class Reward:
    """A user's reward function. It is called by name, with those of the fields that it takes.

    ``prompt`` and ``completion`` are the run's own; fields of the same names are not handed over.

    Args:
        function: ``(prompt, completion, **fields)`` -> a number, a dict with ``reward`` and further
            numbers, or ``(reward, parts)``; or an async function of that kind.

    Attributes:
        is_async: Whether the function is to be awaited.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._takes = _parameters(function)
        self._takes_any = any(one.kind is one.VAR_KEYWORD for one in self._takes.values())
        self._needs = tuple(
            name
            for name, one in self._takes.items()
            if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY} and one.default is one.empty
        )
        call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def impossible(self) -> str | None:
        """Return why the function can never be called, whatever the prompts have; None: it can."""
        for parameter in self._takes.values():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                return f"it takes '{parameter.name}' by position only, and is called by name"
        if "completion" not in self._takes and not self._takes_any:
            return "it has no parameter 'completion'"
        return None

    def arguments(self, task: Task, index: int) -> dict[str, Any]:
        """Return the arguments for one completion.

        Raises:
            MissingField: The function wants what the prompt does not have.
        """
        there = {**task.fields, "prompt": task.prompt, "completion": task.completions[index]}
        for name in self._needs:
            if name not in there:
                has = ", ".join(sorted(there))
                raise MissingField(f"the reward wants '{name}', which the prompt does not have (it has: {has})")
        return there if self._takes_any else {name: value for name, value in there.items() if name in self._takes}

    def grade(self, task: Task, index: int) -> Grade | GradeFault:
        """Call a function that is not async. Whatever it raises becomes a fault, SystemExit too."""
        with Caught() as caught:
            return grade_of(self._function(**self.arguments(task, index)))
        assert caught.error is not None
        return fault_of(caught.error)

    async def grade_async(self, task: Task, index: int) -> Grade | GradeFault:
        """Await an async function. A cancellation passes: whether it was the user's, the caller knows."""
        try:
            return grade_of(await self._function(**self.arguments(task, index)))
        except asyncio.CancelledError:
            raise
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything, and is told so
            return fault_of(exc)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin may have none: it gets everything and judges by itself
        return {"fields": inspect.Parameter("fields", inspect.Parameter.VAR_KEYWORD)}


def grade_of(value: object) -> Grade | GradeFault:
    """Turn what a reward returned into a grade; what is no finite number is a fault, never a 0."""
    reward, parts = value, {}
    if isinstance(value, Mapping):
        if "reward" not in value:
            return fault("wrong_type", f"it returned a dict without 'reward' (it has: {', '.join(map(str, value))})")
        reward, parts = value["reward"], {str(name): part for name, part in value.items() if name != "reward"}
    elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping):
        reward, parts = value[0], {str(name): part for name, part in value[1].items()}
    numbers: dict[str, float] = {}
    for name, part in {**parts, "reward": reward}.items():
        number = _number(name, part)
        if isinstance(number, GradeFault):
            return number
        numbers[_encodable(name)] = number
    return Grade(reward=numbers.pop("reward"), parts=numbers)


def _number(name: str, value: object) -> float | GradeFault:
    if not hasattr(type(value), "__float__"):  # numbers of every library have it; None and text do not
        return fault("wrong_type", f"{name} is {type(value).__name__}, not a number: {_shown(value)}")
    try:
        number = float(value)  # pyright: ignore[reportArgumentType] - it has __float__
    except OverflowError as exc:
        return fault("not_a_number", f"{name}: {exc}")
    except Exception as exc:  # noqa: BLE001 - a tensor of two numbers, whatever its library raises
        return fault("wrong_type", f"{name} is {type(value).__name__}, not one number: {exc}")
    return number if math.isfinite(number) else fault("not_a_number", f"{name} is {number}")


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception as exc:  # noqa: BLE001 - the user's own __repr__
        return f"(its repr raises {type(exc).__name__})"


def fault_of(exc: BaseException) -> GradeFault:
    """Class what a reward raised; the detail is the traceback from the user's own frame on."""
    if isinstance(exc, asyncio.CancelledError):
        return fault("cancelled", "it raised CancelledError, although nobody had cancelled it")
    if isinstance(exc, MissingField):
        return fault("raised", str(exc))
    frames = exc.__traceback__.tb_next if exc.__traceback__ else None
    return fault("raised", "".join(traceback.format_exception(type(exc), exc, frames)).strip())


def fault(kind: FaultKind, detail: str) -> GradeFault:
    """Return a fault whose detail keeps its end, where a traceback says what happened."""
    shown = detail if len(detail) <= _DETAIL else f"…{detail[1 - _DETAIL :]}"
    return GradeFault(kind=kind, detail=_encodable(shown))


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # a lone surrogate fits in no message

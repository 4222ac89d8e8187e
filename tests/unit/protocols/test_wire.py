"""Only messages cross a port: every method of every port, every message, and nothing that hides in one."""

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from backends.sim.prompts import ScriptedPrompts
from backends.sim.virtual_time import run_virtual
from protocols import (
    backend,
    errors,
    fleet,
    grading,
    inference,
    ledger,
    lifecycle,
    messages,
    prompts,
    roles,
    rollouts,
    sections,
    tracking,
    training,
)
from protocols.errors import DeadlineExceeded, EngineBusy, WorkerLost
from protocols.inference import EnginePort, EngineStatus
from protocols.messages import LeaseId, RegistrationKey
from protocols.prompts import Prompt, PromptSourcePort, SourceState, TextPrompt
from protocols.wire import client, encode_error, over_codec, port_methods
from tests.support.arbitrary import message_types, values

MODULES = (
    backend,
    errors,
    fleet,
    grading,
    inference,
    ledger,
    lifecycle,
    messages,
    prompts,
    roles,
    rollouts,
    sections,
    tracking,
    training,
)
STAYS_HOME = {backend.LauncherPort, backend.PayloadPort}
"""They carry others' calls and bulk data, and so cannot be carried by messages themselves."""


def _ports(modules: tuple[ModuleType, ...]) -> Iterator[type]:
    for module in modules:
        for member in vars(module).values():
            here = isinstance(member, type) and member.__module__ == module.__name__
            if here and getattr(member, "_is_protocol", False):
                yield member


PORTS = [port for port in _ports(MODULES) if port not in STAYS_HOME]
METHODS = [(port, name) for port in PORTS for name in port_methods(port)]
MESSAGES = [message for module in MODULES for message in message_types(module) if message is not messages.Message]


def test_every_port_is_found() -> None:
    assert {port.__name__ for port in PORTS} == {
        "EnginePort",
        "GraderPort",
        "InferenceControllerPort",
        "LedgerPort",
        "LifecyclePort",
        "PlacementPort",
        "PromptSourcePort",
        "RolloutExecutorPort",
        "TrackerPort",
        "RankPort",
        "RolePort",
        "RolesPort",
        "TrainerPort",
    }


@pytest.mark.parametrize("message", MESSAGES)
@given(data=st.data())
def test_every_message_decodes_to_an_equal_value(message: type, data: st.DataObject) -> None:
    value = data.draw(values(message))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=message) == value


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_is_frozen_and_refuses_what_it_does_not_know(message: type[msgspec.Struct]) -> None:
    assert message.__struct_config__.frozen
    assert message.__struct_config__.forbid_unknown_fields
    parameters = inspect.signature(message).parameters.values()
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)


def _answering(port: type, method: str, answer: Callable[..., Any]) -> Any:
    """Return a port with one method that is answered; no other is called."""

    async def send(name: str, args: tuple[Any, ...]) -> Any:
        assert name == method
        await checkpoint()
        return answer(*args)

    return over_codec(port, client(port, send))


@pytest.mark.parametrize(("port", "method"), METHODS)
@given(data=st.data())
def test_every_call_crosses_with_equal_arguments_and_results(port: type, method: str, data: st.DataObject) -> None:
    hints = typing.get_type_hints(port_methods(port)[method])
    result = data.draw(values(hints.pop("return")))
    args = tuple(data.draw(values(hint)) for hint in hints.values())
    arrived: list[tuple[Any, ...]] = []

    def answer(*received: Any) -> Any:
        arrived.append(received)
        return result

    async def main() -> Any:
        return await getattr(_answering(port, method, answer), method)(*args)

    assert run_virtual(main) == result
    assert arrived == [args]


class _Tensor:
    """What must never hide in a message."""

    shape = (2, 3)

    def __array__(self) -> None:
        raise AssertionError("nobody may copy bulk data into a message")


HIDDEN_PROMPT = Prompt(position=0, content=TextPrompt(text="p"), fields={"image": _Tensor()})


@pytest.mark.parametrize("hidden", [_Tensor(), [_Tensor()], {"deep": {"deeper": (_Tensor(),)}}])
async def test_a_tensor_hidden_in_a_result_fails(hidden: Any) -> None:
    prompt = Prompt(position=0, content=TextPrompt(text="p"), fields={"image": hidden})
    port = _answering(PromptSourcePort, "draw", lambda: prompt)
    with pytest.raises(TypeError, match="_Tensor"):
        await port.draw()


async def test_a_tensor_hidden_in_an_argument_fails_before_the_call() -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the call must not arrive")

    port = _answering(ledger.LedgerPort, "append", never)
    event = ledger.Admitted(lease_id=LeaseId("L0"), prompt=HIDDEN_PROMPT, group_size=1)
    with pytest.raises(TypeError, match="_Tensor"):
        await port.append((event,))


def test_a_tensor_hidden_in_an_error_fails() -> None:
    with pytest.raises(TypeError, match="_Tensor"):
        encode_error(WorkerLost(worker="w", cause=_Tensor()))  # pyright: ignore[reportArgumentType]


async def test_an_argument_of_another_type_is_refused() -> None:
    port = over_codec(PromptSourcePort, ScriptedPrompts(1))
    with pytest.raises(msgspec.ValidationError):
        await port.restore(RegistrationKey())  # pyright: ignore[reportArgumentType]


async def test_a_result_of_another_type_is_refused() -> None:
    port = _answering(PromptSourcePort, "state", RegistrationKey)
    with pytest.raises(msgspec.ValidationError):
        await port.state()


async def test_an_error_arrives_as_another_object_of_its_class() -> None:
    raised = EngineBusy(engine="e0", waiting=9)

    def refuse() -> EngineStatus:
        raise raised

    with pytest.raises(EngineBusy) as caught:
        await _answering(EnginePort, "status", refuse).status()
    assert caught.value is not raised
    assert (caught.value.engine, caught.value.waiting) == ("e0", 9)
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("error", [asyncio.CancelledError("mine"), KeyError("a bug")])
async def test_what_is_no_error_of_ours_passes_unchanged(error: BaseException) -> None:
    """A cancellation must stay one; a foreign exception shows where it was let through."""

    def fail() -> EngineStatus:
        raise error

    with pytest.raises(type(error)) as caught:
        await _answering(EnginePort, "status", fail).status()
    assert caught.value is error


async def test_what_arrives_is_a_copy() -> None:
    """Sender and receiver share nothing that one of them could change under the other."""
    fields = {"answer": ["1"]}
    sent = Prompt(position=0, content=TextPrompt(text="p"), fields=fields)
    received = await _answering(PromptSourcePort, "draw", lambda: sent).draw()
    fields["answer"].append("2")
    assert received.fields == {"answer": ["1"]}


async def test_a_port_behind_its_codec_is_the_port() -> None:
    port = over_codec(PromptSourcePort, ScriptedPrompts(2))
    first = await port.draw()
    assert first == Prompt(position=0, content=TextPrompt(text="p0"))
    assert await port.state() == SourceState(position=1, seed=0)
    await port.restore(SourceState(position=0, seed=0))
    assert await port.draw() == first


async def test_a_client_sends_names_and_arguments() -> None:
    sent: list[tuple[str, tuple[Any, ...]]] = []

    async def send(method: str, args: tuple[Any, ...]) -> Any:
        await checkpoint()
        sent.append((method, args))
        raise DeadlineExceeded(what=method, deadline_s=1)

    port = client(PromptSourcePort, send)
    state = SourceState(position=3, seed=1)
    calls: list[Callable[[], Awaitable[Any]]] = [port.draw, lambda: port.restore(state)]
    for call in calls:
        with pytest.raises(DeadlineExceeded):
            await call()
    assert sent == [("draw", ()), ("restore", (state,))]

"""The proxy fails exactly one port call; a lost request was not carried out, a lost reply was."""

import anyio
import pytest

from backends.sim.payloads import ScriptedPayloads
from backends.sim.prompts import ScriptedPrompts
from protocols.backend import PayloadPort
from protocols.errors import WorkerLost
from protocols.ledger import AbortConfirmed, LedgerPort
from protocols.messages import LeaseId, PayloadRef
from protocols.prompts import PromptSourcePort
from tests.support.port_faults import PortFaults, When, enumerate_port_calls


def _lost() -> WorkerLost:
    return WorkerLost(worker="w", cause="planted")


async def _two_ports(faults: PortFaults, held: list[ScriptedPayloads]) -> int:
    held.append(ScriptedPayloads())
    prompts = faults.wrap(PromptSourcePort, ScriptedPrompts(2))
    payloads = faults.wrap(PayloadPort, held[-1])
    while (prompt := await prompts.draw()) is not None:
        await payloads.put(PayloadRef(owner=f"{prompt.position}/", key="k"), prompt)
    return len(await payloads.owners())


CALLS = [
    "PromptSourcePort.draw",
    "PayloadPort.put",
    "PromptSourcePort.draw",
    "PayloadPort.put",
    "PromptSourcePort.draw",
    "PayloadPort.owners",
]


@pytest.mark.parametrize("when", ["before", "after"])
def test_each_call_over_all_ports_fails_once(when: When) -> None:
    trials = list(enumerate_port_calls(lambda faults: _two_ports(faults, []), when, _lost))
    assert [site for _, site, _ in trials] == CALLS
    for number, _, outcome in trials:
        assert isinstance(outcome.error, WorkerLost), number


@pytest.mark.parametrize(("when", "stored"), [("before", 0), ("after", 1), ("hang", 0), ("hang_after", 1)])
def test_whether_the_call_was_carried_out(when: When, stored: int) -> None:
    held: list[ScriptedPayloads] = []

    async def program(faults: PortFaults) -> int:
        with anyio.move_on_after(60):
            return await _two_ports(faults, held)
        return -1

    number, _, outcome = list(enumerate_port_calls(program, when, _lost))[1]
    assert number == 2
    assert len(held[2].held) == stored
    if when.startswith("hang"):
        assert outcome.value == -1
        assert outcome.seconds == pytest.approx(60)


def test_what_is_wrapped_has_the_methods_of_the_port_and_no_more() -> None:
    wrapped = PortFaults(None, "before", _lost).wrap(PromptSourcePort, ScriptedPrompts(1))
    assert {name for name in dir(wrapped) if not name.startswith("_")} == {
        "draw",
        "epoch_length",
        "fingerprint",
        "restore",
        "state",
    }


def test_a_lost_request_still_reaches_a_checkpoint() -> None:
    class Nothing:
        async def append(self, events: tuple[AbortConfirmed, ...]) -> None:
            raise AssertionError

        async def replay(self) -> tuple[AbortConfirmed, ...]:
            raise AssertionError

    async def program() -> bool:
        ledger = PortFaults(1, "before", _lost).wrap(LedgerPort, Nothing())
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ledger.append((AbortConfirmed(lease_id=LeaseId("L0")),))
        return scope.cancelled_caught

    assert anyio.run(program)

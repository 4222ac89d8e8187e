"""Episodes of one turn."""

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from backends.episodes import single_turn
from backends.episodes._attempts import _REMEMBERED, Attempts
from backends.episodes.single_turn import SingleTurn
from backends.models.tokenizers import CharacterTokenizer
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.backend import Bulk
from protocols.errors import Aborted, BadPrompt, InvariantError, PromptTooLong, UserError, WorkerLost
from protocols.inference import AbortReport, GenerateRequest, Generation, Sampling, WeightsManifest
from protocols.messages import LeaseId, PayloadRef, RegistrationKey, WeightVersion
from protocols.prompts import ChatMessage, ChatPrompt, Prompt, PromptContent, TextPrompt, TokenPrompt
from protocols.rollouts import GroupPayload, RolloutLease
from tests.support.batches import site
from tests.support.scripted.inference import ScriptedInference
from tests.support.texts import exactly

VOCABULARY = "0123456789." + "".join(chr(0x4E00 + index) for index in range(89))
SAMPLING = Sampling(max_tokens=4)


def lease(content: PromptContent | None = None, sampling: Sampling = SAMPLING, group_size: int = 2) -> RolloutLease:
    return RolloutLease(
        lease_id=LeaseId("L1"),
        attempt=0,
        registration=RegistrationKey(),
        prompt=Prompt(position=0, content=content or TextPrompt(text="123")),
        group_size=group_size,
        sampling=sampling,
        seed=0,
    )


async def served(inference: ScriptedInference) -> ScriptedInference:
    payload = PayloadRef(owner="weights/", key="0")
    await inference.publish(WeightsManifest(version=WeightVersion(0), payload=payload, tensors=1, size_bytes=4))
    return inference


async def play(
    played: RolloutLease, *, length: int = 4, end: str | None = ".", inference: ScriptedInference | None = None
) -> tuple[GroupPayload, GenerateRequest]:
    """Return the payload of a lease, and the request that made it."""
    payloads = ScriptedPayloads()
    inference = await served(inference or ScriptedInference(length=lambda _: length))
    executor = SingleTurn(CharacterTokenizer(VOCABULARY, end), inference, payloads)
    receipt = await executor.generate(played)
    payload = await payloads.get(receipt.payload)
    assert isinstance(payload, GroupPayload)
    (engine,) = inference.engines.values()
    return payload, engine.requests[0]


async def test_the_stop_token_is_a_token_and_no_text() -> None:
    """I68: tokens stay as the engine made them; only the text is without the stop token."""
    payload, request = await play(lease(), length=3)
    assert request.stop_token_ids == (10,)
    for sample in payload.samples:
        assert sample.token_ids[-1] == 10
        assert sample.text == "".join(VOCABULARY[token] for token in sample.token_ids[:-1])


async def test_a_completion_without_a_stop_keeps_its_last_character() -> None:
    payload, _ = await play(lease(), length=4)
    assert all(len(sample.text) == 4 for sample in payload.samples)


async def test_an_empty_completion_is_possible() -> None:
    payload, _ = await play(lease(), length=0)
    assert [(sample.token_ids, sample.text) for sample in payload.samples] == [((), "")] * 2


async def test_stop_texts_join_the_models_own_stop_tokens() -> None:
    sampling = msgspec.structs.replace(SAMPLING, stop=("7", ".", "7"))
    _, request = await play(lease(sampling=sampling))
    assert request.stop_token_ids == (10, 7)


async def test_a_stop_text_of_several_tokens_is_the_users_error() -> None:
    sampling = msgspec.structs.replace(SAMPLING, stop=("12",))
    text = "sampling.stop: '12' is no single token of the model; name one of its tokens, or leave it out"
    with pytest.raises(UserError, match=exactly(text)):
        await play(lease(sampling=sampling))


@pytest.mark.parametrize(
    ("content", "ids", "text"),
    [
        (TextPrompt(text="12"), (1, 2), "12"),
        (ChatPrompt(messages=(ChatMessage(role="user", content="34"),)), (3, 4), "34"),
        (TokenPrompt(token_ids=(5, 6)), (5, 6), "56"),
    ],
)
async def test_every_form_of_prompt_is_played(content: PromptContent, ids: tuple[int, ...], text: str) -> None:
    payload, request = await play(lease(content))
    assert request.prompt_ids == payload.prompt_ids == ids
    assert payload.prompt_text == text


async def test_greedy_log_probabilities_are_of_temperature_one() -> None:
    payload, _ = await play(lease(sampling=msgspec.structs.replace(SAMPLING, temperature=0.0)))
    assert payload.temperature == 1.0
    payload, _ = await play(lease(sampling=msgspec.structs.replace(SAMPLING, temperature=0.7)))
    assert payload.temperature == 0.7


async def test_a_group_is_one_request() -> None:
    _, request = await play(lease(group_size=8))
    assert [one.request_id for one in request.samples] == [f"policy.1/L1/0/{sample}/0" for sample in range(8)]
    assert [one.stream for one in request.samples] == [f"0/0/{sample}/0" for sample in range(8)]


async def test_a_bad_prompt_is_a_fault_of_the_data() -> None:
    with pytest.raises(BadPrompt):
        await play(lease(TextPrompt(text="no such letters")))


async def test_a_prompt_that_is_too_long_says_so() -> None:
    with pytest.raises(PromptTooLong):
        await play(lease(TextPrompt(text="1" * 5000)))


class _Confused(ScriptedInference):
    """Answers in another order than it was asked."""

    async def generate(self, request: GenerateRequest) -> Generation:
        generation = await super().generate(request)
        return Generation(completions=generation.completions[::-1])


async def test_an_answer_to_another_question_is_no_sample() -> None:
    """I11, I42: what came back was taken for what had been asked."""
    with pytest.raises(InvariantError):
        await play(lease(), inference=_Confused())


class _SlowPayloads(ScriptedPayloads):
    """Stores at once and takes a second to say so."""

    async def put(self, ref: PayloadRef, value: Bulk) -> None:
        await super().put(ref, value)
        await anyio.sleep(1)


async def _aborted_at(seconds: float) -> ScriptedPayloads:
    payloads = _SlowPayloads()
    executor = SingleTurn(CharacterTokenizer(VOCABULARY, "."), await served(ScriptedInference(token_s=0.25)), payloads)
    ends: list[str] = []

    async def generate() -> None:
        try:
            await executor.generate(lease())
        except Aborted:
            ends.append("aborted")
        else:
            ends.append("played")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(generate)
        await anyio.sleep(seconds)
        await executor.abort(lease().prefix)
    assert ends == ["aborted" if seconds < 2 else "played"]
    return payloads


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.9, 1.0, 1.1, 1.5, 1.9, 2.1])
async def test_no_payload_outlives_an_abort_whenever_it_comes(seconds: float) -> None:
    """The window between storing and the receipt: the payload is there and nobody knows of it."""
    assert (await _aborted_at(seconds)).held == {}


class _Deaf(ScriptedInference):
    """Engines that cannot be aborted."""

    async def abort(self, prefix: str) -> AbortReport:
        await checkpoint()
        raise WorkerLost(worker="engine/0", cause="its machine is gone")


async def test_an_abort_that_the_engines_do_not_answer_still_ends_the_episodes() -> None:
    executor = SingleTurn(
        CharacterTokenizer(VOCABULARY, "."), await served(_Deaf(token_s=float("inf"))), ScriptedPayloads()
    )
    async with anyio.create_task_group() as tasks:

        async def generate() -> None:
            with pytest.raises(Aborted):
                await executor.generate(lease())

        tasks.start_soon(generate)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(WorkerLost):
            await executor.abort(lease().prefix)


async def test_one_attempt_is_played_once_at_a_time() -> None:
    inference = await served(ScriptedInference(token_s=10))
    executor = SingleTurn(CharacterTokenizer(VOCABULARY, "."), inference, ScriptedPayloads())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(executor.generate, lease())
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(InvariantError, match="runs already"):
            await executor.generate(lease())


async def test_remembered_prefixes_are_bounded() -> None:
    """I73: history that grows for ever."""
    attempts = Attempts()
    for number in range(_REMEMBERED + 1):
        attempts.remember(f"p.1/L{number}/0/")
    attempts.remember("p.1/L2/0/")
    attempts.remember("p.1/another/")
    assert await _is_refused(attempts, "p.1/L0/0/") is False
    assert await _is_refused(attempts, "p.1/L1/0/") is False
    assert await _is_refused(attempts, "p.1/L2/0/") is True, "an abort that is repeated is remembered anew"
    assert await _is_refused(attempts, f"p.1/L{_REMEMBERED}/0/") is True


async def _is_refused(attempts: Attempts, prefix: str) -> bool:
    try:
        await attempts.run(prefix, checkpoint)
    except Aborted:
        return True
    return False


async def test_it_opens_with_the_tokenizer_of_the_jobs_model() -> None:
    payloads, inference = ScriptedPayloads(), await served(ScriptedInference())
    host = Host(site=site(), payloads=payloads, inference=inference)
    assert not single_turn.check(single_turn.Config(), host.site)
    async with single_turn.open(single_turn.Config(), host) as executor:
        with pytest.raises(BadPrompt):
            await executor.generate(lease(TextPrompt(text="x")))


async def test_without_engines_it_does_not_open() -> None:
    with pytest.raises(InvariantError):
        async with single_turn.open(single_turn.Config(), Host(site=site(), payloads=ScriptedPayloads())):
            pass

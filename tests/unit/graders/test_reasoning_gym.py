"""The verifiers of reasoning-gym as rewards, on prompts as their own adapter makes them."""

from collections.abc import Callable, Sequence

import pytest

from backends.graders import reasoning_gym as grader
from backends.prompts import reasoning_gym as prompts
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.grading import Grade, GradeFault, GradeRequest
from protocols.messages import LeaseId, PayloadRef
from protocols.prompts import Prompt, TextPrompt
from protocols.rollouts import GroupPayload, SamplePayload
from protocols.sections import Site

pytest.importorskip("reasoning_gym", reason="pip install 'conductor-rl[reasoning]'")

pytestmark = pytest.mark.real_time

SITE = Site(job_dir="/", seed=3)


async def first_prompt(dataset: str, **config: object) -> Prompt:
    cfg = prompts.Config(dataset=dataset, config=config, size=4)
    async with prompts.open(cfg, Host(site=SITE, payloads=ScriptedPayloads())) as source:
        prompt = await source.draw()
    assert prompt is not None
    return prompt


async def graded(prompt: Prompt, completions: Sequence[str]) -> tuple[Grade | GradeFault, ...]:
    payloads = ScriptedPayloads()
    samples = tuple(SamplePayload(token_ids=(1,), logprobs=(-1.0,), text=text) for text in completions)
    ref = PayloadRef(owner="p.1/L0/0/", key="group")
    await payloads.put(ref, GroupPayload(prompt_ids=(1,), prompt_text="p", temperature=1.0, samples=samples))
    request = GradeRequest(
        lease_id=LeaseId("L0"), attempt=0, prompt=prompt, payload=ref, samples=tuple(range(len(samples)))
    )
    assert not grader.check(grader.Config(), SITE)
    async with grader.open(grader.Config(), Host(site=SITE, payloads=payloads)) as opened:
        return (await opened.grade(request)).grades


SAID: dict[str, tuple[Callable[[str], str], float]] = {
    "the answer": (lambda answer: answer, 1.0),
    "with space around it": (lambda answer: f"  {answer}\n", 1.0),
    "in a tag": (lambda answer: f"I think so. <answer> {answer} </answer>", 1.0),
    "in the last tag": (lambda answer: f"<answer>7</answer> no: <answer>{answer}</answer>", 1.0),
    "a wrong one": (lambda answer: f"{int(answer) + 1}", 0.0),
    "a wrong one in a tag": (lambda answer: f"{answer} <answer>{int(answer) + 1}</answer>", 0.0),
    "nothing": (lambda _: "", 0.0),
}


async def test_completions_are_scored_by_the_generators_own_verifier() -> None:
    """The scores are the verifier's: 1 for the answer, and 0 or its own small consolation for anything else."""
    prompt = await first_prompt("products", max_terms=2, min_digits=1, max_digits=1)
    grades = await graded(prompt, [say(str(prompt.fields["answer"])) for say, _ in SAID.values()])
    scores = [grade.reward for grade in grades if isinstance(grade, Grade)]
    assert scores == pytest.approx([score for _, score in SAID.values()], abs=0.1)


async def test_the_verifier_knows_the_generators_options() -> None:
    """Metadata crossed as messages: a verifier that works on it scores its own answer all the same."""
    prompt = await first_prompt("knights_knaves", n_people=3)
    (grade,) = await graded(prompt, [str(prompt.fields["answer"])])
    assert grade == Grade(reward=1.0)


async def test_prompts_of_another_kind_are_a_fault_and_no_zero() -> None:
    prompt = Prompt(position=0, content=TextPrompt(text="p"), fields={"answer": "4"})
    (fault,) = await graded(prompt, ["4"])
    assert isinstance(fault, GradeFault)
    assert fault.kind == "raised"
    assert "'dataset'" in fault.detail

"""The adapter of user functions: what it finds before a run, and what the function is called with."""

from pathlib import Path

import msgspec
import pytest

from backends.graders import function
from backends.sim.payloads import ScriptedPayloads
from protocols.adapters import Host
from protocols.backend import PayloadPort
from protocols.errors import PayloadLost, UserError
from protocols.grading import Grade, GradeReport, GradeRequest
from protocols.messages import LeaseId, PayloadRef
from protocols.prompts import ChatMessage, ChatPrompt, Prompt, PromptContent, TextPrompt, TokenPrompt
from protocols.rollouts import GroupPayload, SamplePayload
from protocols.sections import Site
from tests.support.texts import exactly

REF = PayloadRef(owner="p.1/L0/0/", key="group")


def write(folder: Path, code: str, **options: object) -> function.Config:
    (folder / "reward.py").write_text(code)
    return function.Config(function="reward.py:reward", **options)


def host(folder: Path, payloads: PayloadPort | None = None) -> Host:
    return Host(site=Site(job_dir=str(folder)), payloads=payloads or ScriptedPayloads())


async def grade(folder: Path, cfg: function.Config, content: PromptContent, fields: dict[str, object]) -> GradeReport:
    payloads = ScriptedPayloads()
    sample = SamplePayload(token_ids=(1,), logprobs=(-1.0,), text="c")
    await payloads.put(REF, GroupPayload(prompt_ids=(1,), prompt_text="p", temperature=1.0, samples=(sample,) * 2))
    prompt = Prompt(position=0, content=content, fields=fields)
    async with function.open(cfg, host(folder, payloads)) as grader:
        return await grader.grade(
            GradeRequest(lease_id=LeaseId("L0"), attempt=0, prompt=prompt, payload=REF, samples=(0,))
        )


@pytest.mark.parametrize("mode", ["cheap", "async", pytest.param("processes", marks=pytest.mark.real_time)])
@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (TextPrompt(text="p"), "'p'"),
        (TokenPrompt(token_ids=(1, 2)), "[1, 2]"),
        (ChatPrompt(messages=(ChatMessage(role="user", content="hi"),)), "[{'role': 'user', 'content': 'hi'}]"),
    ],
)
async def test_the_prompt_is_as_the_user_wrote_it(
    tmp_path: Path, mode: str, content: PromptContent, shown: str
) -> None:
    define = "async def" if mode == "async" else "def"
    code = f"{define} reward(prompt, completion, answer): return float((repr(prompt), completion) == (answer, 'c'))"
    cfg = write(tmp_path, code, cheap=mode == "cheap")
    report = await grade(tmp_path, cfg, content, {"answer": shown, "unused": None})
    assert report.grades == (Grade(reward=1.0),)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def reward(: pass", "SyntaxError"),
        ("def rewrad(prompt, completion): pass", "reward"),
        ("import no_such_module_at_all", "no_such_module_at_all"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(2)", "SystemExit"),
        ("reward = 0.5", "it is float, not a function"),
        ("def reward(prompt): pass", "no parameter 'completion'"),
        ("def reward(p, c, /): pass", "'p' by position"),
    ],
)
def test_a_function_that_cannot_work_is_a_problem_of_the_job(tmp_path: Path, code: str, why: str) -> None:
    cfg = write(tmp_path, code)
    (problem,) = function.check(cfg, host(tmp_path).site)
    assert problem.field == "reward.function"
    assert problem.value == "'reward.py:reward'"
    assert why in problem.why
    assert problem.mend


def test_the_place_of_the_users_error_is_shown(tmp_path: Path) -> None:
    (problem,) = function.check(write(tmp_path, "x = 1\ny = x / 0\n"), host(tmp_path).site)
    assert "reward.py:2" in problem.why


def test_a_missing_file_is_a_problem_of_the_job(tmp_path: Path) -> None:
    (problem,) = function.check(function.Config(function="nowhere.py:reward"), host(tmp_path).site)
    assert "nowhere.py" in problem.why


def test_a_good_function_is_none(tmp_path: Path) -> None:
    assert not function.check(write(tmp_path, "def reward(prompt, completion, **fields): pass"), host(tmp_path).site)


async def test_opening_a_function_that_cannot_be_had_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=exactly(
            "reward.function = 'reward.py:reward': it cannot be imported: ZeroDivisionError: "
            "division by zero (...reward.py:1)"
        ),
    ):
        async with function.open(write(tmp_path, "1 / 0"), host(tmp_path)):
            pass


@pytest.mark.parametrize("held", [{"weights": 1}, None])
async def test_a_payload_that_is_gone_or_another_is_lost(held: dict[str, int] | None, tmp_path: Path) -> None:
    """It is the group's failure, not the grader's: the group is generated anew."""
    payloads = ScriptedPayloads()
    if held is not None:
        await payloads.put(REF, held)
    cfg = write(tmp_path, "def reward(completion): return 0.0", cheap=True)
    request = GradeRequest(
        lease_id=LeaseId("L0"),
        attempt=0,
        prompt=Prompt(position=0, content=TextPrompt(text="p")),
        payload=REF,
        samples=(0,),
    )
    async with function.open(cfg, host(tmp_path, payloads)) as grader:
        with pytest.raises(PayloadLost) as caught:
            await grader.grade(request)
        assert caught.value.owner == REF.owner


@pytest.mark.parametrize("options", [{"workers": 0}, {"deadline_s": 0}, {"concurrency": 0}, {"cheep": True}])
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"function": "reward.py:reward", **options}, function.Config)

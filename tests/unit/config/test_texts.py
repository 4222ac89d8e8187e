"""What users read of a job that is wrong, to the letter: field, value, why, and what to do.

One mistake each, laid over the job of the demo; ``JOB_DIR`` stands for its folder, ``...`` for a library's own words.
"""

import re
from pathlib import Path

import pytest

from conductor.loading import load_config
from protocols.errors import ConfigError

JOB = Path(__file__).parents[3] / "examples" / "reverse" / "job.toml"
NEEDS = {
    "reasoning_gym": "reasoning_gym",
    "datasets": "datasets",
    "vllm": "httpx2",
    "sglang": "httpx2",
    "lora": "peft",
    "ray": "ray",
}

MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "an algorithm that is none": (
        ("train.algorithm='grpoo'",),
        "train.algorithm = 'grpoo': there is no such algorithm; did you mean 'grpo'?",
    ),
    "an algorithm like none": (
        ("train.algorithm='zzz'",),
        (
            "train.algorithm = 'zzz': there is no such algorithm; choose one of grpo, dapo, dr_grpo, rloo, "
            "maxrl, lite_ppo, gspo, cispo, reinforce_pp, reinforce_pp_baseline, ppo"
        ),
    ),
    "a policy that is none": (
        ("staleness='lose'",),
        "staleness = 'lose': there is no such policy; did you mean 'loose'?",
    ),
    "a policy like none": (
        ("staleness='zzz'",),
        (
            "staleness = 'zzz': there is no such policy; choose one of loose, wait, drop, partial, or name "
            "module:sampler"
        ),
    ),
    "more prompts than a step needs, and age": (
        ("max_age=1", "oversample=1.5"),
        ("oversample = 1.5: max_age = 1 generates 32 groups ahead already; leave it out, or set max_age to 0"),
    ),
    "more samples than engines take": (
        ("engine.slots=8", "engine.max_waiting=8", "slots=4"),
        (
            "slots = 4: 4 groups of 16 are 64 samples, and the engine takes 16; give at most 1, or let each "
            "engine take more (engine.max_waiting)"
        ),
    ),
    "a reward longer than its group": (
        ("reward.deadline_s=601",),
        (
            "reward.deadline_s = 601: grading one group ends at deadlines.reward, 600, and with it every "
            "sample of the group; give less than 600, or more to deadlines.reward"
        ),
    ),
    "an engine too many for evaluation": (
        ("evaluation={every=1,size=1,engines=2,prompts={kind='function',function='task.py:prompt'}}", "engines=2"),
        (
            "evaluation.engines = 2: the run has 2 engines, and the training needs at least one; give fewer "
            "than 2, or more engines"
        ),
    ),
    "a role without its section": (
        ("fleet.roles.evaluation={}",),
        (
            "fleet.roles.evaluation: nothing of it is launched: [evaluation.reward] is missing, or handed "
            "over in code; leave it out"
        ),
    ),
    "an evaluation longer than its deadline": (
        ("evaluation={every=1,size=1,prompts={kind='function',function='task.py:prompt'}}", "deadlines.evaluation=3"),
        (
            "deadlines.evaluation = 3: generating and grading one of its groups takes up to 1200 "
            "(deadlines.group + deadlines.reward); give at least 1200"
        ),
    ),
    "the same completion twice": (
        (
            "evaluation={every=1,size=1,samples=2,prompts={kind='function',function='task.py:prompt'},sampling={max_tokens=4,temperature=0}}",
        ),
        (
            "evaluation.samples = 2: all 2 completions of a prompt would be the same; give 1, or another "
            "evaluation.sampling"
        ),
    ),
    "fewer than the run may have": (
        ("fleet.roles.rollout={min=2}",),
        "fleet.roles.rollout.min = 2: the run begins with 1, which is fewer; give 1 at most",
    ),
    "more than the run may have": (
        ("engines=3", "fleet.roles.rollout={max=2}"),
        "fleet.roles.rollout.max = 2: the run begins with 3, which is more; give 3 at least",
    ),
    "bounds of a role that is not scaled": (
        ("fleet.roles.policy={min=1,max=2}",),
        "fleet.roles.policy.min: only rollout can be scaled while the run goes on; leave it out",
    ),
    "a role that runs nothing": (
        ("fleet.roles.judge={instances=2}",),
        (
            "fleet.roles.judge: no such role; known are policy, rollout, episode, reward, evaluation; say "
            'what it runs: kind = "module:name", or command'
        ),
    ),
    "one rank and shards": (
        ("train.sharding='full_shard'",),
        (
            "train.sharding = 'full_shard': a single rank has nobody to share with; give "
            "fleet.roles.policy.instances at least 2, or leave it out"
        ),
    ),
    "two clips of a loss without one": (
        ("train.dual_clip=3.0", "train.loss='reinforce'"),
        (
            "train.dual_clip = 3: the loss 'reinforce' has no dual clip; set loss to 'clip' or 'gspo', or "
            "leave dual_clip out"
        ),
    ),
    "a ratio twice": (
        ("train.importance='sequence'",),
        (
            "train.importance = 'sequence': the loss 'clip' has the ratio to the policy that drew the tokens "
            "in it already; set proximal to 'start' or loss to 'reinforce', or leave importance out"
        ),
    ),
    "a length that nothing divides by": (
        ("train.aggregation='token'", "train.aggregation_length=5"),
        (
            "train.aggregation_length = 5: aggregation = 'token' does not divide by it; set aggregation to "
            "'constant', or leave aggregation_length out"
        ),
    ),
    "bounds the wrong way round": (
        ("train.reject={by='token',low=2.0,high=1.0}",),
        "train.reject.low = 2: no ratio is between 2 and 1; give less than high",
    ),
    "a discount of nothing": (
        ("train.gamma=0.9",),
        (
            "train.gamma = 0.9: returns = 'sample' discounts nothing; set returns to 'discounted' or 'gae', "
            "or leave gamma out"
        ),
    ),
    "a weight of no critic": (
        ("train.lam=0.9",),
        ("train.lam = 0.9: returns = 'sample' has no critic to weigh; set returns to 'gae', or leave lam out"),
    ),
    "a critic that is not asked": (
        ("train.critic={lr=1.0}",),
        (
            "train.critic = {'lr': 1.0, 'clip': 0.2}: returns = 'sample' has no critic; set returns to "
            "'gae', or leave [train.critic] out"
        ),
    ),
    "a penalty in no reward": (
        ("train.kl={coef=0.1,place='reward'}",),
        (
            "train.kl.place = 'reward': returns = 'sample' knows no rewards of tokens to take it off; set "
            "place to 'loss', or returns to 'discounted' or 'gae'"
        ),
    ),
    "a schedule that only warms up": (
        ("train.schedule={kind='linear',steps=5,warmup=5}",),
        "train.schedule.warmup = 5: the fall ends at step 5, and nothing is left of it; give less than 5",
    ),
    "a character twice": (
        ("model.vocabulary='00123456789>'",),
        "model.vocabulary = '00123456789>': '0' is in it more than once; name each character once",
    ),
    "an end that is no character": (
        ("model.end='x'",),
        ("model.end = 'x': it is not a character of the vocabulary; add it to model.vocabulary, or leave it out"),
    ),
    "an architecture like none": (
        ("model.architecture='zzz'",),
        (
            "model.architecture = 'zzz': transformers has no causal language model of this type; gpt2, llama "
            "and qwen3 are often used"
        ),
    ),
    "a size that is none": (
        ("model.config.n_haed=4",),
        "model.config.n_haed = 4: 'gpt2' has no such value; did you mean 'n_head'?",
    ),
    "a size like none": (
        ("model.config.zzz=4",),
        "model.config.zzz = 4: 'gpt2' has no such value; see the configuration of 'gpt2'",
    ),
    "sizes that do not fit": (
        ("model.config.n_head=5",),
        (
            "model.config = {'n_embd': 64, 'n_layer': 1, 'n_head': 5, 'n_positions': 32, "
            "'tie_word_embeddings': False}: transformers cannot build it: `embed_dim` must be divisible by "
            "num_heads (got `embed_dim`: 64 and `num_heads`: 5).; make the sizes fit each other"
        ),
    ),
    "a folder that is not there": (
        ("model={kind='pretrained',path='./none'}",),
        (
            "model.path = './none': there is no folder JOB_DIR/none; name a folder with config.json, weights "
            "and tokenizer"
        ),
    ),
    "a layer that is none": (
        ("model.lora={rank=2,targets=['nothing']}",),
        (
            "model.lora.targets = 'nothing': no linear layer, the output head aside, has this name; the "
            "model has c_attn, c_fc, c_proj"
        ),
    ),
    "no server": (
        ("engine={kind='vllm'}",),
        "engine.urls: it is not said which server it is; give either urls or a command",
    ),
    "no address": (
        ("engine={kind='vllm',urls=['localhost:8000']}",),
        "engine.urls = 'localhost:8000': it is no address of a server; write it as http://host:8000",
    ),
    "a server that is not told its port": (
        ("engine={kind='vllm',command=['serve']}",),
        "engine.command = 'serve': the server is not told its port; write {port} where it goes",
    ),
    "two servers": (
        ("engine={kind='vllm',command=['serve','{port}'],urls=['http://a:1']}",),
        "engine.urls: it is both attached to and started; give either urls or a command",
    ),
    "a router before nothing": (
        ("engine={kind='vllm',command=['serve','{port}'],router='http://a:1'}",),
        "engine.router = 'http://a:1': nobody knows which servers are behind it; name them all in urls",
    ),
    "adapters for SGLang": (
        ("engine={kind='sglang',urls=['http://a:1']}", "model.lora={rank=2}"),
        (
            "model.lora: sglang is given whole models, not adapters; train without lora, or with engine.kind "
            "= 'vllm' or 'torch'"
        ),
    ),
    "no folder for payloads": (
        ("backend={kind='processes',payload_dir='nowhere'}",),
        "backend.payload_dir = 'nowhere': there is no such folder; make it, or leave it out",
    ),
    "a cluster from outside": (
        ("backend={kind='ray',address='ray://a:1'}",),
        (
            "backend.address = 'ray://a:1': the controller has to be on a machine of the cluster; start it "
            "there, with host:port or 'auto'"
        ),
    ),
    "a long folder": (
        ("backend={kind='ray',folder='/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'}",),
        (
            "backend.folder = '/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx': the paths of sockets are short: 30 "
            "characters at most; name a shorter one"
        ),
    ),
    "a simulation that is run": (
        ("backend={kind='sim'}",),
        ("backend.kind = 'sim': a simulated run has nothing to write; simulate the job: conductor simulate JOB"),
    ),
    "a command that is none": (
        ("fleet.roles.judge.command=['no-such-program']",),
        (
            "fleet.roles.judge.command = 'no-such-program': there is no such program; name one on the PATH, "
            "or a file that may be executed"
        ),
    ),
    "an object that is none": (
        ("fleet.roles.judge={kind='object',options={make='nowhere:x'}}",),
        (
            "fleet.roles.judge.options.make = 'nowhere:x': it cannot be imported: ModuleNotFoundError: No "
            "module named 'nowhere'; name it module:name, or path.py:name next to the job file"
        ),
    ),
    "a function that cannot be ended": (
        ("fleet.roles.judge={kind='function',options={function='task.py:prompt'}}",),
        (
            "fleet.roles.judge.options.function = 'task.py:prompt': it is no coroutine function, so nothing "
            "could end it; write it as async def"
        ),
    ),
    "epochs of what knows none": (
        ("prompts.epochs=2",),
        (
            "prompts.epochs = 2: nobody knows how long an epoch of a function is; set prompts.epoch_length, "
            "or leave prompts.epochs out"
        ),
    ),
    "no file of prompts": (
        ("prompts={kind='jsonl',path='none.jsonl'}",),
        (
            "prompts.path = 'none.jsonl': the file cannot be read: [Errno 2] No such file or directory: "
            "'JOB_DIR/none.jsonl'; give the path of a file of JSON lines"
        ),
    ),
    "a file of no prompts": (
        ("prompts={kind='jsonl',path='task.py'}",),
        (
            "prompts.path = 'task.py': line 1: it is no JSON object: Expected `object`, got `str`; give each "
            "line an object whose 'prompt' is text, chat messages or token ids\n"
            "prompts.path = 'task.py': line 3: it is no JSON object: JSON is malformed: invalid character "
            "(byte 0); give each line an object whose 'prompt' is text, chat messages or token ids\n"
            "prompts.path = 'task.py': line 5: it is no JSON object: JSON is malformed: invalid character "
            "(byte 0); give each line an object whose 'prompt' is text, chat messages or token ids\n"
            "prompts.path = 'task.py': 7 more lines are bad; give each line an object whose 'prompt' is "
            "text, chat messages or token ids"
        ),
    ),
    "no data set": (
        ("prompts={kind='datasets',path='none.parquet',prompt_field='a'}",),
        (
            "prompts.path = 'none.parquet': there is no JOB_DIR/none.parquet; name a file, a folder or a "
            "Hugging Face dataset, and a split that it has"
        ),
    ),
    "a generator that is none": (
        ("prompts={kind='reasoning_gym',dataset='nothing'}", "reward={kind='reasoning_gym'}"),
        (
            "prompts.dataset = 'nothing': reasoning-gym has no such dataset; see "
            "reasoning_gym.factory.DATASETS for all of them"
        ),
    ),
    "an option that is ours": (
        ("prompts={kind='reasoning_gym',dataset='leg_counting',config={seed=1}}", "reward={kind='reasoning_gym'}"),
        "prompts.config.seed = 1: it is not the generator's to set; the run's seed decides it",
    ),
    "an option that is none": (
        ("prompts={kind='reasoning_gym',dataset='leg_counting',config={nothing=1}}", "reward={kind='reasoning_gym'}"),
        (
            "prompts.config.nothing = 1: 'leg_counting' has no such option; it has min_animals, max_animals, "
            "min_instances, max_instances"
        ),
    ),
    "a value that is refused": (
        (
            "prompts={kind='reasoning_gym',dataset='leg_counting',config={min_animals=-1}}",
            "reward={kind='reasoning_gym'}",
        ),
        (
            "prompts.config = {'min_animals': -1}: 'leg_counting' refuses it: AssertionError: min_animals "
            "must be positive "
            "(...); "
            "see the generator's configuration"
        ),
    ),
    "no such function": (
        ("reward.function='task.py:nothing'",),
        (
            "reward.function = 'task.py:nothing': task.py has no function 'nothing'; name it "
            "module:function, or path.py:function next to the job file"
        ),
    ),
    "no such file": (
        ("reward.function='nothing.py:reward'",),
        (
            "reward.function = 'nothing.py:reward': it cannot be imported: FileNotFoundError: [Errno 2] No "
            "such file or directory: 'JOB_DIR/nothing.py'; name it module:function, or path.py:function next "
            "to the job file"
        ),
    ),
    "a function that takes no completion": (
        ("reward.function='task.py:prompt'",),
        (
            "reward.function = 'task.py:prompt': it has no parameter 'completion'; write it as def "
            "reward(prompt, completion, **fields)"
        ),
    ),
    "an adapter that is none": (
        ("trackers=[{kind='wandbb'}]",),
        "trackers[0].kind = 'wandbb': no such adapter; did you mean 'wandb'?",
    ),
    "an override of a value": (
        ("steps.x=1",),
        "--set = 'steps.x=1': 'steps' is a whole number, not a table; set it whole",
    ),
    "no override": (("steps",), "--set = 'steps': is no 'name=value'; write --set train.lr=1e-3"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_told(what: str) -> None:
    overrides, text = MISTAKES[what]
    for named in re.findall(r"kind='(\w+)'|model\.(lora)", " ".join(overrides)):
        pytest.importorskip(NEEDS.get("".join(named), "json"))
    with pytest.raises(ConfigError) as caught:
        load_config(JOB, overrides=overrides)
    told = "\n".join(str(problem) for problem in caught.value.problems)
    pattern = re.escape(text.replace("JOB_DIR", str(JOB.parent))).replace(re.escape("..."), ".+")
    assert re.fullmatch(pattern, told), told

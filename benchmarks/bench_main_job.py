"""How fast is the main job, beside TRL and beside a plain PyTorch loop?

The same Hugging Face Llama is trained with GRPO on the same prompts, in one process, in turns:

- ``ours``: ``Conductor.run`` with the in-process backend, the torch engine and the torch trainer;
- ``trl``: TRL's ``GRPOTrainer`` (only with the extra ``bench``);
- ``bare``: prefill and decode with a ``DynamicCache``, one forward and backward pass, one update. It has
  no controller, no rewards from Python functions and no log, and reads a prompt once for each of its samples.

Each counts the samples of all steps but the first, over the time they took. The figures are medians of the
rounds; a ratio is taken inside each round first, since both sides of it then had the same machine.

    python -m benchmarks.bench_main_job [--shape small|medium|smollm2 ...] [--rounds N]

``smollm2`` has the sizes of SmolLM2-135M and random weights: a token costs the same, whatever it says. A step of it
takes the better part of a minute, so it is one round of two steps, and the plain loop is left out.
"""

import argparse
import importlib.util
import json
import logging
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import torch
import transformers
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, PreTrainedTokenizerFast

from backends.models.loading import load_module
from conductor import Conductor, RunConfig
from conductor.config import FilterConfig
from protocols.inference import Sampling
from protocols.sections import Section, Site

LR = 1e-3
END = "end"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model and a batch: ``prompts`` x ``samples`` completions of ``tokens`` tokens each step.

    Attributes:
        model: Values of the transformers configuration.
        vocabulary: Different tokens, the end of a completion among them.
        steps: Of one measurement.
        rounds: How often each side is measured, unless somebody says otherwise.
        peers: Who is measured.
    """

    prompts: int
    samples: int
    prompt_tokens: int
    tokens: int
    vocabulary: int
    steps: int
    rounds: int = 5
    peers: tuple[str, ...] = ("ours", "bare", "trl")
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Samples of one step."""
        return self.prompts * self.samples

    def prompt_text(self, index: int, seed: int) -> str:
        """Return prompt ``index``."""
        drawn = random.Random(f"{seed}/{index}").choices(range(self.vocabulary - 1), k=self.prompt_tokens)
        return " ".join(map(str, drawn))

    def save(self, folder: str) -> None:
        """Write the model, with random weights, and a tokenizer for numbers."""
        words = {str(number): number for number in range(self.vocabulary - 1)} | {END: self.vocabulary - 1}
        inner = Tokenizer(models.WordLevel(words, unk_token=END))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, pad_token=END).save_pretrained(folder)
        config = LlamaConfig(vocab_size=self.vocabulary, bos_token_id=None, eos_token_id=None, **self.model)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def _llama(*, layers: int, width: int, heads: int, inner: int, kv_heads: int | None = None) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads or heads,
        "max_position_embeddings": 256,
    }


SHAPES = {
    "small": Shape(
        model=_llama(layers=2, width=64, heads=4, inner=256),
        prompts=16,
        samples=16,
        prompt_tokens=16,
        tokens=4,
        vocabulary=12,
        steps=20,
    ),
    "medium": Shape(
        model=_llama(layers=4, width=256, heads=4, inner=1024),
        prompts=8,
        samples=8,
        prompt_tokens=32,
        tokens=64,
        vocabulary=12,
        steps=4,
        rounds=3,
    ),
    "smollm2": Shape(
        model=_llama(layers=30, width=576, heads=9, inner=1536, kv_heads=3) | {"tie_word_embeddings": True},
        prompts=4,
        samples=8,
        prompt_tokens=96,
        tokens=32,
        vocabulary=49_152,
        steps=2,
        rounds=1,
        peers=("ours", "trl"),
    ),
}


def reward(completion: str) -> float:
    """Return the mean last digit of a completion over 9: cheap, dense, and different inside a group."""
    digits = [int(word[-1]) for word in completion.split() if word.isdigit()]
    return sum(digits) / (9 * max(1, len(digits)))


def job(name: str, folder: str) -> RunConfig:
    """Return the job of a shape, whose model and functions lie in ``folder``."""
    shape = SHAPES[name]
    (Path(folder) / "task.py").write_text(
        "from benchmarks.bench_main_job import SHAPES, reward\n\n\n"
        f"def prompt(index, seed):\n    return SHAPES[{name!r}].prompt_text(index, seed)\n"
    )
    return RunConfig(
        name="bench",
        steps=shape.steps,
        batch_groups=shape.prompts,
        group_size=shape.samples,
        sampling=Sampling(max_tokens=shape.tokens),
        filter=FilterConfig(equal_rewards="keep"),
        job_dir=folder,
        model=_section(folder),
        prompts=Section(kind="function", options={"function": "task.py:prompt"}),
        reward=Section(kind="function", options={"function": "task.py:reward", "cheap": True}),
        engine=Section(kind="torch", options={"slots": shape.batch}),
        train=Section(kind="torch", options={"lr": LR, "micro_batch_tokens": 1 << 20}),
        trackers=(),
    )


def _section(folder: str) -> Section:
    return Section(kind="pretrained", options={"path": folder})


def measure_ours(name: str, folder: str) -> float:
    """Train through the controller; returns samples per second."""
    result = anyio.run(Conductor.run, job(name, folder))
    return SHAPES[name].batch * (result.steps - 1) / sum(one.metrics["time/step_s"] for one in result.metrics[1:])


def measure_bare(name: str, folder: str) -> float:
    """Train in a plain loop; returns samples per second."""
    shape, steps = SHAPES[name], SHAPES[name].steps
    module = load_module(Site(job_dir=".", model=_section(folder)))
    optimizer = torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=0.0)
    began = 0.0
    for step in range(steps):
        if step == 1:
            began = time.perf_counter()
        _bare_step(module, optimizer, shape)
    return shape.batch * (steps - 1) / (time.perf_counter() - began)


def _bare_step(module: Any, optimizer: torch.optim.Optimizer, shape: Shape) -> None:
    prompts = torch.randint(0, shape.vocabulary - 1, (shape.prompts, shape.prompt_tokens)).repeat_interleave(
        shape.samples, 0
    )
    tokens, behaviour = _bare_generate(module, prompts, shape.tokens)
    completion = tokens[:, shape.prompt_tokens :]
    rewards = completion.float().mean(1).view(shape.prompts, shape.samples)
    centred = rewards - rewards.mean(1, keepdim=True)
    advantages = (centred / (rewards.std(1, keepdim=True) + 1e-6)).view(-1, 1)
    logits = module(input_ids=tokens, use_cache=False, logits_to_keep=shape.tokens + 1).logits[:, :-1]
    logprobs = logits.log_softmax(-1).gather(-1, completion[..., None])[..., 0]
    ratio = (logprobs - behaviour).exp()
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()


@torch.no_grad()
def _bare_generate(module: Any, prompts: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    cache, current, tokens, chosen = DynamicCache(config=module.config), prompts, prompts, []
    for _ in range(length):
        out = module(input_ids=current, past_key_values=cache, use_cache=True, logits_to_keep=1)
        probabilities = out.logits[:, -1].softmax(-1)
        current = torch.multinomial(probabilities, 1)
        tokens = torch.cat([tokens, current], 1)
        chosen.append(probabilities.gather(1, current).log())
    return tokens, torch.cat(chosen, 1)


def measure_trl(name: str, folder: str) -> float:
    """Train with TRL's GRPOTrainer; returns samples per second."""
    from datasets import Dataset  # noqa: PLC0415 # pyright: ignore[reportMissingImports] - the extra `bench`
    from transformers import PrinterCallback, TrainerCallback  # noqa: PLC0415
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415 # pyright: ignore[reportMissingImports]

    shape, steps = SHAPES[name], SHAPES[name].steps
    site = Site(job_dir=".", model=_section(folder))
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as output:
        texts = [shape.prompt_text(index, 0) for index in range(shape.prompts * steps)]
        config = GRPOConfig(
            output_dir=output,
            max_steps=steps,
            per_device_train_batch_size=shape.batch,
            num_generations=shape.samples,
            max_completion_length=shape.tokens,
            learning_rate=LR,
            lr_scheduler_type="constant",
            beta=0.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=load_module(site),
            reward_funcs=lambda completions, **_: [reward(completion) for completion in completions],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return shape.batch * (len(times) - 1) / (times[-1] - times[0])


MEASURES: dict[str, Callable[[str, str], float]] = {"ours": measure_ours, "bare": measure_bare, "trl": measure_trl}


def compare(name: str, rounds: int) -> dict[str, list[float]]:
    """Measure every peer that is there, in turns; returns samples per second, one figure a round."""
    peers = [peer for peer in SHAPES[name].peers if peer != "trl" or importlib.util.find_spec("trl")]
    speeds: dict[str, list[float]] = {peer: [] for peer in peers}
    with tempfile.TemporaryDirectory() as folder:
        SHAPES[name].save(folder)
        for _ in range(rounds):
            for peer in peers:
                speeds[peer].append(MEASURES[peer](name, folder))
    return speeds


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median over rounds of ours over theirs."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def show(name: str, speeds: dict[str, list[float]]) -> None:
    """Print the table of one shape for people."""
    shape = SHAPES[name]
    size = f"{shape.prompts} x {shape.samples} x {shape.tokens} tokens, prompts of {shape.prompt_tokens}"
    table = Table(title=f"{name}: {size}; {len(speeds['ours'])} x {shape.steps} steps")
    for column in ("", "samples/s (median)", "ours is"):
        table.add_column(column)
    for peer, values in speeds.items():
        table.add_row(peer, f"{statistics.median(values):,.1f}", f"{median_ratio(speeds['ours'], values):.2f} x")
    Console().print(table)


def be_quiet() -> None:
    """Keep the libraries' progress and warnings out of the table."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("trl").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def summary(speeds: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    """Return the figures that the line of JSON holds, of the shapes and peers that were measured."""
    figures: dict[str, float] = {}
    for figure, shape, peer in (("vs_trl", "small", "trl"), ("vs_bare", "small", "bare")):
        if peer in speeds.get(shape, {}):
            figures[figure] = round(median_ratio(speeds[shape]["ours"], speeds[shape][peer]), 3)
    if "small" in speeds:
        figures["samples_per_s"] = round(statistics.median(speeds["small"]["ours"]), 1)
    if "trl" in speeds.get("smollm2", {}):
        figures["vs_trl_smollm2"] = round(median_ratio(speeds["smollm2"]["ours"], speeds["smollm2"]["trl"]), 3)
    return figures


def main() -> None:
    """Measure, print a table of each shape for people and one line of JSON."""
    parser = argparse.ArgumentParser(description="The main job beside TRL and a plain loop")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument(
        "--rounds", type=int, default=None, help="of every shape; default: as many as each has time for"
    )
    args = parser.parse_args()
    be_quiet()
    speeds: dict[str, dict[str, list[float]]] = {}
    for name in args.shape:
        speeds[name] = compare(name, args.rounds or SHAPES[name].rounds)
        show(name, speeds[name])
    print(json.dumps(summary(speeds)))


if __name__ == "__main__":
    main()

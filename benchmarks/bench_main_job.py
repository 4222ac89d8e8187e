"""How fast is the main job, beside TRL and beside a plain PyTorch loop?

The same Hugging Face Llama is trained with GRPO on the same prompts, in one process, in turns:

- ``ours``: ``Conductor.run`` with the in-process backend, the torch engine and the torch trainer;
- ``trl``: TRL's ``GRPOTrainer`` (only with the extra ``bench``);
- ``bare``: prefill and decode with a ``DynamicCache``, one forward and backward pass, one update. It has
  no controller, no rewards from Python functions and no log, so it is the bound that controllers pay from.

Each counts the samples of all steps but the first, over the time they took. The figures are medians of the
rounds; a ratio is taken inside each round first, since both sides of it then had the same machine.

    python -m benchmarks.bench_main_job [--shape small|medium] [--rounds 5] [--steps 20]
"""

import argparse
import importlib.util
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import torch
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache

from backends.models.loading import load_module, load_tokenizer
from conductor import Conductor, RunConfig
from conductor.config import FilterConfig
from protocols.inference import Sampling
from protocols.sections import Section, Site

VOCABULARY = "0123456789>_"
LR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model and a batch: ``prompts`` x ``samples`` completions of ``tokens`` tokens each step."""

    layers: int
    width: int
    heads: int
    prompts: int
    samples: int
    prompt_tokens: int
    tokens: int

    @property
    def batch(self) -> int:
        """Samples of one step."""
        return self.prompts * self.samples

    def config(self) -> dict[str, Any]:
        """Return the values of the transformers configuration."""
        return {
            "hidden_size": self.width,
            "intermediate_size": 4 * self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "max_position_embeddings": self.prompt_tokens + self.tokens,
        }

    def model(self) -> Section:
        """Return the model as a section of a job."""
        options = {"architecture": "llama", "vocabulary": VOCABULARY, "config": self.config()}
        return Section(kind="scratch", options=options)


SHAPES = {
    "small": Shape(layers=2, width=64, heads=4, prompts=16, samples=16, prompt_tokens=16, tokens=4),
    "medium": Shape(layers=4, width=256, heads=4, prompts=8, samples=8, prompt_tokens=32, tokens=64),
}


def prompt_text(index: int, seed: int, tokens: int) -> str:
    """Return prompt ``index``, one character a token."""
    return "".join(random.Random(f"{seed}/{index}").choices("0123456789", k=tokens - 1)) + ">"


def reward(completion: str) -> float:
    """Return the mean digit of a completion over 9: cheap, dense, and different inside a group."""
    digits = [int(character) for character in completion if character.isdigit()]
    return sum(digits) / (9 * max(1, len(digits)))


def job(shape: Shape, steps: int, folder: str) -> RunConfig:
    """Return the job, whose functions lie in ``folder``."""
    path = Path(folder) / "task.py"
    path.write_text(
        "from benchmarks.bench_main_job import prompt_text, reward\n\n\n"
        f"def prompt(index, seed):\n    return prompt_text(index, seed, {shape.prompt_tokens})\n"
    )
    return RunConfig(
        name="bench",
        steps=steps,
        batch_groups=shape.prompts,
        group_size=shape.samples,
        sampling=Sampling(max_tokens=shape.tokens),
        filter=FilterConfig(equal_rewards="keep"),
        job_dir=folder,
        model=shape.model(),
        prompts=Section(kind="function", options={"function": "task.py:prompt"}),
        reward=Section(kind="function", options={"function": "task.py:reward", "cheap": True}),
        engine=Section(kind="torch", options={"slots": shape.batch}),
        train=Section(kind="torch", options={"lr": LR, "micro_batch_tokens": 1 << 20}),
        trackers=(),
    )


def measure_ours(shape: Shape, steps: int) -> float:
    """Train through the controller; returns samples per second."""
    with tempfile.TemporaryDirectory() as folder:
        result = anyio.run(Conductor.run, job(shape, steps, folder))
    return shape.batch * (steps - 1) / sum(record.metrics["time/step_s"] for record in result.metrics[1:])


def measure_bare(shape: Shape, steps: int) -> float:
    """Train in a plain loop; returns samples per second."""
    module = load_module(Site(job_dir=".", model=shape.model()))
    optimizer = torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=0.0)
    began = 0.0
    for step in range(steps):
        if step == 1:
            began = time.perf_counter()
        _bare_step(module, optimizer, shape)
    return shape.batch * (steps - 1) / (time.perf_counter() - began)


def _bare_step(module: Any, optimizer: torch.optim.Optimizer, shape: Shape) -> None:
    prompts = torch.randint(0, 10, (shape.prompts, shape.prompt_tokens)).repeat_interleave(shape.samples, 0)
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


def measure_trl(shape: Shape, steps: int) -> float:
    """Train with TRL's GRPOTrainer; returns samples per second."""
    from datasets import Dataset  # noqa: PLC0415 - the extra `bench` may be missing
    from transformers import AutoTokenizer, TrainerCallback  # noqa: PLC0415
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415

    site = Site(job_dir=".", model=shape.model())
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        load_tokenizer(site).save(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.pad_token = tokenizer.eos_token = "_"  # noqa: S105 - TRL wants both; it may stop early, which favours it
        texts = [prompt_text(index, 0, shape.prompt_tokens) for index in range(shape.prompts * steps)]
        config = GRPOConfig(
            output_dir=folder,
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
            processing_class=tokenizer,
            callbacks=[Clock()],
        )
        trainer.train()
    return shape.batch * (len(times) - 1) / (times[-1] - times[0])


def compare(
    shape: Shape, *, rounds: int, steps: int, peers: dict[str, Callable[[Shape, int], float]]
) -> dict[str, list[float]]:
    """Measure every peer in turns; returns samples per second, one figure a round."""
    speeds: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, measure in peers.items():
            speeds[name].append(measure(shape, steps))
    return speeds


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median over rounds of ours over theirs."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def main() -> None:
    """Measure, print a table for people and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    peers = {"ours": measure_ours, "bare": measure_bare}
    if importlib.util.find_spec("trl"):
        peers["trl"] = measure_trl
    speeds = compare(shape, rounds=args.rounds, steps=args.steps, peers=peers)
    table = Table(title=f"{args.shape}: {asdict(shape)}")
    for column in ("", "samples/s (median)", "ours is"):
        table.add_column(column)
    for name, values in speeds.items():
        table.add_row(name, f"{statistics.median(values):,.0f}", f"{median_ratio(speeds['ours'], values):.2f} x")
    Console().print(table)
    ratios = {f"vs_{name}": round(median_ratio(speeds["ours"], speeds[name]), 3) for name in peers if name != "ours"}
    print(json.dumps({**ratios, "samples_per_s": round(statistics.median(speeds["ours"]), 1)}))


if __name__ == "__main__":
    main()

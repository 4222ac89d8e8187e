"""Sample held-out tasks from the untrained model and from trained ones, in the same way, and say what was gained.

    python examples/smollm2/evaluate.py JOB CHECKPOINT... [--set FIELD=VALUE ...] [--train-seeds 1 ...]
        [--tasks 256] [--samples 2] [--seed 1000]

JOB says what the tasks are, how tokens are drawn and what the untrained model is. A CHECKPOINT is a folder that a run
of it wrote (``runs/.../checkpoints/step-20``). Questions that a run with one of the ``--train-seeds`` could have seen
are left out, and none is asked twice. The gain at a task is the mean score of its samples from the trained models less
that from the untrained one; the interval is the mean gain +- 1.96 standard errors over tasks. It says what other tasks
and other samples would change; what other seeds of training would change, the gain of each checkpoint shows.

The last line is one JSON object.
"""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from backends._reasoning_gym import score
from backends.prompts.reasoning_gym import Config, open_tasks
from conductor import load_config
from protocols.inference import Sampling

Z = 1.96
"""Standard errors from the mean to the ends of a 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Which tasks are asked, how often, and how tokens are drawn."""

    tasks: Sequence[dict[str, Any]]
    samples: int
    sampling: Sampling
    seed: int

    def scores(self, folder: str) -> list[float]:
        """Return the mean score of a model's samples at each task."""
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        torch.manual_seed(self.seed)
        means: list[float] = []
        for start in range(0, len(self.tasks), 8):
            asked = self.tasks[start : start + 8]
            texts = self._sample(model, tokenizer, [task["prompt"] for task in asked])
            for number, task in enumerate(asked):
                fields = {name: value for name, value in task.items() if name != "prompt"}
                said = texts[number * self.samples : (number + 1) * self.samples]
                means.append(statistics.fmean(score(completion=text, **fields) for text in said))
        return means

    def _sample(self, model: Any, tokenizer: Any, prompts: Sequence[list[dict[str, str]]]) -> list[str]:
        """Return ``samples`` completions of each prompt, those of one prompt next to each other."""
        encoded = tokenizer.apply_chat_template(
            list(prompts), add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            drawn = model.generate(
                **encoded,
                do_sample=True,
                temperature=self.sampling.temperature,
                top_p=self.sampling.top_p,
                top_k=self.sampling.top_k,
                max_new_tokens=self.sampling.max_tokens,
                num_return_sequences=self.samples,
            )
        return tokenizer.batch_decode(drawn[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)


def held_out(cfg: Config, *, train_seeds: Sequence[int], seed: int, count: int) -> list[dict[str, Any]]:
    """Return ``count`` tasks with different questions that no run with one of ``train_seeds`` could have seen."""
    ranges = [open_tasks(cfg, train_seed) for train_seed in train_seeds]
    asked = {task(index)["question"] for task in ranges for index in range(cfg.size)}
    tasks: list[dict[str, Any]] = []
    fresh = open_tasks(cfg, seed)
    for index in range(cfg.size):
        task = fresh(index)
        if task["question"] not in asked:
            asked.add(task["question"])
            tasks.append(task)
        if len(tasks) == count:
            return tasks
    raise SystemExit(f"of {cfg.size} tasks only {len(tasks)} are held out, and {count} were asked for")


def interval(gains: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the ends of its 95 % interval, by the normal approximation."""
    mean = statistics.fmean(gains)
    width = Z * statistics.stdev(gains) / math.sqrt(len(gains))
    return mean, mean - width, mean + width


def main() -> None:
    options = parsed()
    job = load_config(options.job, overrides=options.set)
    assert job.model is not None
    assert job.prompts is not None
    tasks = held_out(
        msgspec.convert(job.prompts.options, Config),
        train_seeds=options.train_seeds or [job.seed],
        seed=options.seed,
        count=options.tasks,
    )
    evaluation = Evaluation(tasks=tasks, samples=options.samples, sampling=job.sampling, seed=options.seed)
    untrained = evaluation.scores(str(Path(job.job_dir or ".") / Path(job.model.options["path"]).expanduser()))
    print(f"untrained {statistics.fmean(untrained):.3f}", flush=True)
    trained: list[list[float]] = []
    for checkpoint in options.checkpoints:
        trained.append(evaluation.scores(checkpoint))
        gain, low, high = interval([after - before for after, before in zip(trained[-1], untrained, strict=True)])
        print(
            f"{checkpoint} {statistics.fmean(trained[-1]):.3f}, gain {gain:+.3f} [{low:+.3f}, {high:+.3f}]", flush=True
        )
    means = [statistics.fmean(scores) for scores in zip(*trained, strict=True)]
    gain, low, high = interval([after - before for after, before in zip(means, untrained, strict=True)])
    result = {
        "tasks": len(tasks),
        "samples": options.samples,
        "untrained": statistics.fmean(untrained),
        "trained": [statistics.fmean(scores) for scores in trained],
        "gain": gain,
        "interval_95": [low, high],
    }
    print(json.dumps(result))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("job")
    parser.add_argument("checkpoints", nargs="+", metavar="checkpoint")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="as for conductor run")
    parser.add_argument("--train-seeds", type=int, nargs="+", help="seeds of the runs; the job's unless given")
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--samples", type=int, default=2, help="of each task, from each model")
    parser.add_argument("--seed", type=int, default=1000, help="of the held-out tasks and of the tokens")
    return parser.parse_args()


if __name__ == "__main__":
    main()

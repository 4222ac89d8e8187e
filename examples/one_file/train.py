"""A whole job in one file: prompts, a reward, and the run. The model learns to count."""

import random
import sys

import anyio

from conductor import Conductor, RunConfig, RunResult
from protocols.inference import Sampling
from protocols.sections import Section


def prompt(index: int, seed: int) -> dict[str, str]:
    """Return prompt number ``index``, a digit; its further field goes to the reward."""
    digit = random.Random(f"{seed}/{index}").randrange(10)
    return {"prompt": f"{digit}>", "answer": str((digit + 1) % 10)}


def reward(completion: str, answer: str) -> dict[str, float]:
    """Return 1 for the answer, and 0.1 for another digit; the other parts are metrics of their own."""
    right, digit = float(completion == answer), float(completion.isdigit())
    return {"reward": 0.9 * right + 0.1 * digit, "right": right, "digit": digit}


def job(steps: int) -> RunConfig:
    """Return the job; its functions are those above, which the reward's workers import from this file."""
    return RunConfig(
        name="count",
        steps=steps,
        batch_groups=16,
        group_size=16,
        sampling=Sampling(max_tokens=1),
        model=Section(
            kind="scratch",
            options={
                "architecture": "gpt2",
                "vocabulary": "0123456789>",
                "config": {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 8, "tie_word_embeddings": False},
            },
        ),
        prompts=Section(kind="function", options={"function": f"{__file__}:prompt"}),
        reward=Section(kind="function", options={"function": f"{__file__}:reward"}),
        train=Section(kind="torch", options={"lr": 5e-3}),
    )


async def train(steps: int = 60) -> RunResult:
    """Run it, writing nothing."""
    return await Conductor.run(job(steps))


if __name__ == "__main__":
    result = anyio.run(train, int(sys.argv[1]) if len(sys.argv) > 1 else 60)
    print(f"reward {result.reward_first:.2f} -> {result.reward_last:.2f} in {result.steps} steps; {result.accounts}")

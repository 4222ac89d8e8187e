"""Count up: the prompts and the reward. Change both; `conductor run job.toml` trains on whatever stands here."""

import random

LENGTH = 4


def prompt(index: int, seed: int) -> dict[str, str]:
    """Return prompt number ``index``. It must depend on its two arguments alone, so that a run can be repeated.

    ``prompt`` is what the model sees. Every other field comes to the reward by its name.
    """
    start = random.Random(f"{seed}/{index}").randrange(10)
    answer = "".join(str((start + step) % 10) for step in range(1, LENGTH + 1))
    return {"prompt": f"{start}>", "answer": answer}


def reward(completion: str, answer: str) -> float:
    """Return what a completion is worth: here the share of digits in the right place.

    Any finite number will do. What raises, hangs or returns something else masks its sample and is counted; it is
    never a silent 0.
    """
    return sum(a == b for a, b in zip(completion, answer, strict=False)) / LENGTH

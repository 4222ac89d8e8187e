"""Write 2 digits backwards: the example's task, small enough to be learned in seconds."""

import random


def prompt(index: int, seed: int) -> dict[str, str]:
    digits = "".join(random.Random(f"{seed}/{index}").choices("0123456789", k=2))
    return {"prompt": f"{digits}>", "digits": digits}


def reward(completion: str, digits: str) -> float:
    return sum(a == b for a, b in zip(completion, reversed(digits), strict=False)) / 2

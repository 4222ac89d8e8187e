"""Write 8 digits backwards: the prompts and the reward."""

import random

DIGITS = 8


def prompt(index: int, seed: int) -> dict[str, str]:
    """Return prompt number ``index``: 8 digits and ``>``. It depends on its two arguments alone."""
    digits = "".join(random.Random(f"{seed}/{index}").choices("0123456789", k=DIGITS))
    return {"prompt": f"{digits}>", "digits": digits}


def reward(completion: str, digits: str) -> float:
    """Return the fraction of digits in the right place."""
    return sum(a == b for a, b in zip(completion, reversed(digits), strict=False)) / DIGITS

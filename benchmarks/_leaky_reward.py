"""A reward that ends in a cancellation nobody asked for, for one answer in five."""

import asyncio


async def reward(completion: str, digits: str) -> float:
    """Return the share of digits that are right."""
    await asyncio.sleep(0)
    if int(digits) % 5 == 0:
        raise asyncio.CancelledError
    return sum(a == b for a, b in zip(completion, reversed(digits), strict=False)) / len(digits)

"""How scripted ports spend time."""

import math

import anyio


async def spend(seconds: float) -> None:
    """Reach a checkpoint and let ``seconds`` of the loop's time pass; ``math.inf`` hangs until cancelled."""
    if math.isinf(seconds):
        await anyio.sleep_forever()
    await anyio.sleep(seconds)

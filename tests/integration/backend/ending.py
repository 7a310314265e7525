"""How a test ends what it has begun."""

import asyncio
from typing import Any

AGAIN_S = 0.5


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel them until they are over. One cancellation may be lost: where the wait that it interrupts
    ends by itself in the same moment, or turns it into a time-out, the task goes on."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)

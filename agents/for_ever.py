"""Work that has no end of its own goes on after an error of ours, whatever it is.

Called by the runtime and by `agents.main` for what the agent does for as long as it lives.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable

from agents.log import note

AGAIN_S = 1.0


async def for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """Until it is cancelled. An error is noted, and costs what was under way."""
    while True:
        try:
            await work()
        except Exception:
            note("internal error", on=work.__qualname__, trace=traceback.format_exc(limit=8))
        await asyncio.sleep(AGAIN_S)

"""Time limits that a peer is held to, without the time in which this process was too busy to look.

A plain time-out compares clocks: when a loop wakes up late, its timers are due before it has read what came in the
meantime, and a peer that answered at once is called silent. Here the limit passes in slices, and between two of them
the loop looks at its sockets: lateness stretches one slice, and a peer that was in time is always seen.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_SLICES: Final = 8


@asynccontextmanager
async def patience(seconds: float) -> AsyncIterator[None]:
    """As ``asyncio.timeout``: raises TimeoutError after ``seconds`` in which this loop was awake."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def start_slice(left: int) -> None:
        nonlocal timer
        timer = loop.call_later(seconds / _SLICES, end_slice, left - 1)

    def end_slice(left: int) -> None:
        if left:
            start_slice(left)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        start_slice(_SLICES)
        try:
            yield
        finally:
            timer.cancel()

"""Lets continuations begin a few at a time: a replica's death is hundreds of prefills for those that are left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidewheel.gateway.replies.reply import Reply


class Pacer:
    """A continuation holds its place until it shows something, or ends."""

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)

    @asynccontextmanager
    async def turn(self, reply: Reply) -> AsyncIterator[None]:
        """Wait for a place; it is given back at the reply's next event, at the latest at the end of the block."""
        await self._places.acquire()
        place = _Place(self._places)
        reply.on_progress = place.give_back
        try:
            yield
        finally:
            reply.on_progress = None
            place.give_back()


class _Place:
    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def give_back(self) -> None:
        places, self._places = self._places, None
        if places is not None:
            places.release()

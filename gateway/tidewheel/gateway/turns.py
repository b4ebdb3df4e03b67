"""Bounds what one turn of the loop does for streams, so that whatever else waits for a turn gets one soon.

The loop reads every socket that has something before it looks at timers, new connections and tasks again. Streams that
bring more than it can carry would so fill a turn for a second, and a reply needs several turns to begin. Therefore the
reads of one turn share a budget of bytes. What is read beyond it is held back, its connection read no further, and
served in the turns that follow, in the order of arrival.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

READ_BYTES: Final = 8 * 1024
TURN_BYTES: Final = 32 * 1024  # some 150 events: a few milliseconds of work


class Waiting(Protocol):
    """A connection that holds back what it has read."""

    def take_turn(self) -> int:
        """Handle what was held back: how many bytes that was."""


class Turns:
    """Of one loop. ``left`` is what may still be handled in this turn; ``buffer`` is where everybody reads into."""

    __slots__ = ("_budget", "_is_renewing", "_waiting", "buffer", "left")

    def __init__(self, budget: int = TURN_BYTES) -> None:
        self._budget = budget
        self._waiting: deque[Waiting] = deque()
        self._is_renewing = False
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.left = budget

    def renew_soon(self) -> None:
        """The budget is spent: there is a new one in the next turn."""
        if not self._is_renewing:
            self._is_renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def wait(self, connection: Waiting) -> None:
        """Until it is this one's turn."""
        self._waiting.append(connection)
        self.renew_soon()

    def _renew(self) -> None:
        self._is_renewing = False
        self.left = self._budget
        try:
            while self._waiting and self.left > 0:
                self.left -= self._waiting.popleft().take_turn()
        finally:
            if self._waiting or self.left <= 0:
                self.renew_soon()

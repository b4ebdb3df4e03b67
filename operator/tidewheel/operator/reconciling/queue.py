"""The work queue: models to look at, each once however often it was added, and by one worker at a time."""

import asyncio
import contextlib
import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tidewheel.operator.planning.records import ModelKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Full jitter: a uniform delay up to first * 2^failures, capped."""

    first_seconds: float = 0.2
    limit_seconds: float = 300.0
    random: Callable[[float, float], float] = random.uniform

    def delay(self, failures: int) -> float:
        """Delay after so many failures in a row; never less than a twentieth of the cap of this step."""
        cap = min(self.limit_seconds, self.first_seconds * 2 ** min(failures - 1, 32))
        return self.random(cap / 20, cap)


class QueueClosed(Exception):  # noqa: N818 - the end of work, not an error
    """No model is given out any more."""


@dataclass(order=True, slots=True)
class _Later:
    at: float
    key: ModelKey = field(compare=False)


class WorkQueue:
    """A de-duplicating queue of one event loop. ``clock`` is monotonic."""

    def __init__(self, *, backoff: Backoff, clock: Callable[[], float]) -> None:
        self._backoff = backoff
        self._clock = clock
        self._ready: deque[ModelKey] = deque()
        self._waiting_since: dict[ModelKey, float] = {}
        self._active: dict[ModelKey, float] = {}
        self._dirty: set[ModelKey] = set()
        self._later: list[_Later] = []
        self._due: dict[ModelKey, float] = {}
        self._failures: dict[ModelKey, int] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready) + len(self._dirty)

    def add(self, key: ModelKey) -> None:
        """Look at this model as soon as a worker is free; again afterwards if it is being looked at now."""
        if key in self._active:
            self._dirty.add(key)
        elif key not in self._waiting_since:
            self._waiting_since[key] = self._clock()
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: ModelKey, seconds: float) -> None:
        """Look at this model in ``seconds``, or earlier if it was asked for earlier."""
        at = self._clock() + max(0.0, seconds)
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            heapq.heappush(self._later, _Later(at, key))
            self._wake.set()

    def retry(self, key: ModelKey, *, at_least_seconds: float = 0.0) -> float:
        """Look again after the model's back-off, which grows until ``succeeded``; returns the delay."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(at_least_seconds, self._backoff.delay(failures))
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: ModelKey) -> None:
        """End the model's back-off."""
        self._failures.pop(key, None)

    async def take(self) -> ModelKey:
        """The next model; the caller must give it back with ``done``. Raises QueueClosed."""
        while True:
            if self._closed:
                raise QueueClosed
            pause = self._promote()
            if self._ready:
                key = self._ready.popleft()
                del self._waiting_since[key]
                self._active[key] = self._clock()
                return key
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    def close(self) -> None:
        """Give out nothing any more."""
        self._closed = True
        self._wake.set()

    def done(self, key: ModelKey) -> None:
        """The worker is through with this model."""
        del self._active[key]
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def oldest_seconds(self) -> float:
        """How long some model has waited for a worker, or has kept one."""
        moments = [*self._waiting_since.values(), *self._active.values()]
        return self._clock() - min(moments) if moments else 0.0

    def _promote(self) -> float | None:
        """Move what is due to the ready ones; returns the seconds until the next is."""
        now = self._clock()
        while self._later and self._later[0].at <= now:
            later = heapq.heappop(self._later)
            if self._due.get(later.key) == later.at:
                del self._due[later.key]
                self.add(later.key)
        return self._later[0].at - now if self._later else None

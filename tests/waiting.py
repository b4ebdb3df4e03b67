"""Awaiting a condition: tests never sleep for a guess."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

# The longest that a machine busy with something else may take for a step; only a failure ever waits so long.
PATIENCE_SECONDS = 60.0


async def eventually(
    condition: Callable[[], T | Awaitable[T]],
    *,
    within_seconds: float = PATIENCE_SECONDS,
    what: str = "",
    every: float = 0.02,
) -> T:
    """The first true value of ``condition``; fails with ``what`` and the last value after ``within_seconds``."""
    deadline = time.monotonic() + within_seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds:g} s: {what or condition}; last seen: {value!r}")
        await asyncio.sleep(every)

"""Background tasks by key: at most one for each, none left behind."""

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class KeyedTasks(Generic[Key]):
    """A key's task is replaced by starting another; ``close`` ends all and waits for them."""

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def is_running(self, key: Key) -> bool:
        """Whether the key has a task that has not ended."""
        return (task := self._tasks.get(key)) is not None and not task.done()

    def start(self, key: Key, work: Coroutine[object, object, None], *, name: str) -> None:
        """The key's former task is cancelled, not waited for."""
        self.stop(key)
        self._tasks[key] = asyncio.create_task(work, name=name)

    def stop(self, key: Key) -> None:
        """Cancel the key's task, if it has one."""
        if task := self._tasks.pop(key, None):
            task.cancel()

    async def close(self) -> None:
        """Cancel every task, and return when all have ended."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""An event loop in a thread of its own, so that a fault works even while the test's own loop or thread is busy."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Looped:
    """Base of what runs beside a test: a context manager whose coroutines run in another thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.run(self.aclose())
        finally:
            self.run(self._cancel_rest())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    async def aclose(self) -> None:
        """Frees what the subclass holds."""

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_seconds: float = 30.0) -> T:
        """The result of a coroutine that runs in the other thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_seconds)

    async def _cancel_rest(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.05)  # TLS transports close over a few turns of the loop; a stopped one leaks them
        for _ in range(10):  # an aborted TLS connection needs several turns to close its socket
            await asyncio.sleep(0)

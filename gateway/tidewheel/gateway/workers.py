"""The parent of several worker processes: one watch of the API server, whatever their number.

The parent holds one listening socket per worker, all on one port (SO_REUSEPORT). A worker that dies is replaced and
its replacement goes on with the same socket, so that connections that wait in its queue are not lost.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from tidewheel.gateway.aggregation import Aggregate
from tidewheel.gateway.feed import Line
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.snapshot import Snapshot

_log = logging.getLogger(__name__)

_SCRAPE_SECONDS = 2.0
_START_SECONDS = 60.0
_PINGS_IN_SILENCE = 5


class _Worker:
    """One running process."""

    def __init__(self, process: asyncio.subprocess.Process, line: Line) -> None:
        self.process = process
        self.line = line
        self.listening = False
        self.obeyed = 0
        self.reported = asyncio.Event()


class WorkerPool:
    """Starts workers, feeds them, replaces them, adds up their metrics."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sockets: Sequence[socket.socket] = ()
        self._workers: dict[int, _Worker] = {}
        self._started = 0
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._listening = [asyncio.Event() for _ in range(settings.workers)]
        self._snapshots: dict[int, Snapshot] = {}
        self._number = 0
        self._aggregate = Aggregate(lambda: self._newest().versions())
        self.registry = CollectorRegistry()
        self.registry.register(self._aggregate)

    def publish(self, snapshot: Snapshot) -> None:
        """Send a snapshot to every worker."""
        self._number += 1
        self._snapshots[self._number] = snapshot
        message = self._message()
        for worker in self._workers.values():
            worker.line.send(message)
        self._forget_old()

    def obeyed(self) -> Snapshot | None:
        """What every worker obeys by its own word. One that has no snapshot yet serves nobody and does not count."""
        numbers = [worker.obeyed for worker in self._workers.values() if worker.obeyed]
        return self._snapshots.get(min(numbers)) if numbers else None

    async def render(self) -> bytes:
        """The metrics of all workers; one that does not answer in time counts with its last report."""
        workers = list(self._workers.values())
        for worker in workers:
            worker.reported.clear()
            worker.line.send({"scrape": True})
        waits = [asyncio.ensure_future(worker.reported.wait()) for worker in workers]
        if waits:
            _, late = await asyncio.wait(waits, timeout=_SCRAPE_SECONDS)
            for wait in late:
                wait.cancel()
        return await asyncio.to_thread(generate_latest, self.registry)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Start every worker and wait until they listen."""
        self._sockets = sockets
        self._tasks = [asyncio.create_task(self._keep_running(slot)) for slot in range(len(sockets))]
        for listening in self._listening:
            await listening.wait()

    async def drain(self, *, accept_seconds: float) -> None:
        """Let every worker drain, and return when they are gone."""
        self._stopping = True
        number = signal.SIGTERM if accept_seconds else signal.SIGINT
        for worker in self._workers.values():
            if worker.process.returncode is None:
                worker.process.send_signal(number)
        await asyncio.gather(*self._tasks)
        for sock in self._sockets:
            sock.close()

    async def _keep_running(self, slot: int) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            started_at = loop.time()
            try:
                code: int | str = await self._run_one(slot)
            except OSError as error:
                code = str(error)
            if self._stopping:
                return
            _log.error("a worker ended and is replaced", extra={"exit_code": code})
            await asyncio.sleep(max(0.0, started_at + self._settings.worker_restart_seconds - loop.time()))

    async def _run_one(self, slot: int) -> int:
        sock, (ours, theirs) = self._sockets[slot], socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tidewheel.gateway.worker"),
                *("--listen-fd", str(sock.fileno()), "--feed-fd", str(theirs.fileno())),
                *self._settings.to_arguments(),
                pass_fds=(sock.fileno(), theirs.fileno()),
                start_new_session=True,  # a Ctrl-C reaches the parent, which then tells the workers
            )
        self._started += 1
        name, worker = self._started, _Worker(process, await Line.over(ours))
        self._workers[name] = worker
        if self._stopping:
            process.terminate()
        worker.line.send(self._message())
        try:
            async with asyncio.TaskGroup() as group:
                pinging = group.create_task(self._ping(worker))
                await self._listen(name, worker, slot=slot)
                pinging.cancel()
            return await process.wait()
        finally:
            del self._workers[name]
            self._aggregate.retire(name)
            worker.reported.set()
            worker.line.close()
            if process.returncode is None:
                process.kill()

    async def _ping(self, worker: _Worker) -> None:
        while True:
            worker.line.send({"ping": True})
            await asyncio.sleep(self._settings.worker_silence / _PINGS_IN_SILENCE)

    async def _listen(self, name: int, worker: _Worker, *, slot: int) -> None:
        """Take what a worker says until it is gone; one that hangs is ended."""
        while True:
            try:
                async with asyncio.timeout(self._settings.worker_silence if worker.listening else _START_SECONDS):
                    message = await worker.line.receive()
            except TimeoutError:
                _log.error("a worker hangs", extra={"worker": worker.process.pid})
                worker.process.kill()
                return
            if message is None:
                return
            self._take(name, worker, message=message, slot=slot)

    def _take(self, name: int, worker: _Worker, *, message: dict[str, Any], slot: int) -> None:
        if "listening" in message:
            worker.listening = True
            self._listening[slot].set()
        elif "obeyed" in message:
            worker.obeyed = message["obeyed"]
            self._forget_old()
        elif "metrics" in message:
            self._aggregate.take(name, message["metrics"])
            worker.reported.set()

    def _message(self) -> dict[str, object]:
        known = self._snapshots.get(self._number)
        return {"number": self._number, "snapshot": known.to_json() if known is not None else None}

    def _newest(self) -> Snapshot:
        return self._snapshots.get(self._number, Snapshot())

    def _forget_old(self) -> None:
        oldest = min((worker.obeyed for worker in self._workers.values() if worker.obeyed), default=self._number)
        self._snapshots = {number: kept for number, kept in self._snapshots.items() if number >= oldest}

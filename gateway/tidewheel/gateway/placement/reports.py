"""What replicas say of themselves in ``GET /load``, asked several times a second, each by one request at a time."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final

import orjson

from tidewheel.gateway.load_report import LoadReport, parse_report
from tidewheel.gateway.patience import patience
from tidewheel.gateway.replicas import Replica
from tidewheel.gateway.upstream import BrokenError, Headers, Pool, UnreachableError

_MOST_BYTES: Final = 64 * 1024
_AT_ONCE: Final = 32
_UNABLE_SECONDS: Final = 30.0


class _Body:
    """Collects one small answer."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_head(self, status: int, headers: Headers) -> None:
        self.status = status

    def on_body(self, data: bytes) -> None:
        if len(self.body) + len(data) > _MOST_BYTES:
            self._fail(UnreachableError("the report is too long"))
        else:
            self.body += data

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def on_broken(self, error: BrokenError) -> None:
        self._fail(error)

    def on_read(self) -> None:
        pass

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class LoadReports:
    """Asks every ready replica again and again; ``on_report`` hears when a round is over."""

    def __init__(
        self,
        replicas: Callable[[], Iterable[Replica]],
        *,
        authorization: Callable[[], bytes | None],
        on_report: Callable[[], object],
        poll_seconds: float,
        timeout: float,
    ) -> None:
        self._replicas = replicas
        self._authorization = authorization
        self._on_report = on_report
        self._poll_seconds = poll_seconds
        self._timeout = timeout
        self._unable_until: dict[str, float] = {}
        self._asking: set[str] = set()
        self._doors = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled. A replica that does not answer delays nobody else's turn (production-stack#749)."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                ready = [replica for replica in self._replicas() if replica.ready]
                present = {replica.uid for replica in ready}
                self._unable_until = {uid: at for uid, at in self._unable_until.items() if uid in present}
                for replica in ready:
                    if replica.uid in self._asking or time.monotonic() < self._unable_until.get(replica.uid, 0.0):
                        continue
                    self._asking.add(replica.uid)
                    task = loop.create_task(self._ask(replica))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                await asyncio.sleep(self._poll_seconds)
                self._on_report()
        finally:
            for task in list(self._tasks):
                task.cancel()

    async def _ask(self, replica: Replica) -> None:
        asyncio.get_running_loop()
        try:
            async with self._doors:
                with contextlib.suppress(UnreachableError, BrokenError, TimeoutError, orjson.JSONDecodeError):
                    async with patience(self._timeout):
                        report = await self._fetch(replica)
                    if report is None:
                        self._unable_until[replica.uid] = time.monotonic() + _UNABLE_SECONDS
                    else:
                        replica.note_report(report, now=time.monotonic())
        finally:
            self._asking.discard(replica.uid)

    async def _fetch(self, replica: Replica) -> LoadReport | None:
        authorization = self._authorization()
        lines = () if authorization is None else (b"authorization: " + authorization,)
        status, body = await fetch(replica.pool, "/load", *lines)
        return parse_report(orjson.loads(body)) if status == 200 else None


async def fetch(pool: Pool, path: str, *lines: bytes) -> tuple[int, bytes]:
    """Status and body of one small GET; ``lines`` are headers. Raises UnreachableError or BrokenError."""
    connection = await pool.connect()
    try:
        head = [b"GET " + path.encode() + b" HTTP/1.1", b"host: " + pool.host_header, b"accept-encoding: identity"]
        listener = _Body()
        connection.send((b"\r\n".join([*head, *lines]) + b"\r\n\r\n",), listener)
        await listener.done
        return listener.status, bytes(listener.body)
    finally:
        connection.release()

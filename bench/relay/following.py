"""A client that follows one reply to its end, whoever is killed meanwhile, and checks every event that it is shown."""

import asyncio
import json
import time
from typing import Any

_ID = b"id: "
_HEARTBEAT = b": ping\n"


class ChangedError(Exception):
    """A byte is missing, repeated or changed."""


class Follower(asyncio.Protocol):
    """Asks ``ports[0]``; when that hangs up before the end it resumes at the next port, ``pause`` seconds later.

    HTTP/1.0, so that the body is the stream itself. ``shown`` is all of it, in order; ``times`` when its events came.
    """

    def __init__(self, ports: list[int], body: dict[str, Any], *, resumable: bool = True, pause: float = 0.0) -> None:
        self._ports = ports
        self._resumable = resumable
        self._pause = pause
        self._request = _post(body, resumable=resumable)
        self._buffer = b""
        self._in_body = False
        self._again: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.reply_id = ""
        self.number = 0
        self.shown = bytearray()
        self.times: list[float] = []
        self.reconnected_at: float | None = None
        self.gap: float | None = None
        self.resumed = 0
        self.begun = asyncio.Event()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self) -> None:
        """Send the request; ``done`` resolves at the stream's end, or fails."""
        await self._connect(self._request)

    def close(self) -> None:
        """Go away."""
        if not self.done.done():
            self.done.cancel()
        if self._again is not None:
            self._again.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _connect(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._ports[self.resumed])
        self._transport = transport
        transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Events, whole or in parts."""
        self._buffer += data
        try:
            self._read()
        except ChangedError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Resume, unless the reply is complete."""
        if self.done.done():
            return
        if not self.reply_id or self.resumed + 1 >= len(self._ports):
            self._fail(ConnectionError(f"hung up after event {self.number}: {bytes(self.shown[-200:])!r}"))
            return
        self._again = asyncio.get_running_loop().create_task(self._resume())

    async def _resume(self) -> None:
        await asyncio.sleep(self._pause)
        self._buffer, self._in_body = b"", False
        self.resumed += 1
        self.reconnected_at = time.perf_counter()
        line = f"GET /v1/replies/{self.reply_id}/events HTTP/1.0"
        try:
            await self._connect(f"{line}\r\nhost: bench\r\nlast-event-id: {self.number}\r\n\r\n".encode())
        except OSError as error:
            self._fail(error)

    def _read(self) -> None:
        if not self._in_body:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
                self._fail(ConnectionError(f"{head.split(b' ', 2)[1].decode()}: {rest[:300]!r}"))
                return
            self._in_body, self._buffer = True, rest
            named = head.partition(b"x-tidewheel-reply: ")[2].partition(b"\r\n")[0].decode()
            self.reply_id = named or self.reply_id
        *events, self._buffer = self._buffer.split(b"\n\n")
        for event in events:
            self._take(event.removeprefix(_HEARTBEAT) + b"\n\n")

    def _take(self, event: bytes) -> None:
        while event.startswith(_HEARTBEAT):
            event = event.removeprefix(_HEARTBEAT)
        number = event.removeprefix(_ID).partition(b"\n")[0]
        if not number.isdigit() or int(number) != self.number + 1:
            raise ChangedError(f"after event {self.number} came {event[:80]!r}")
        self.number += 1
        self.shown += event
        self.times.append(time.perf_counter())
        if self.reconnected_at is not None and self.gap is None:
            self.gap = self.times[-1] - self.reconnected_at
        self.begun.set()
        if b"\ndata: [DONE]\n" in event:
            self._finish(None)
        elif b"event: error\n" in event:
            self._finish(ConnectionError(event.decode()))

    def _fail(self, error: Exception) -> None:
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        self.begun.set()
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    @property
    def text(self) -> str:
        """What a reader has read."""
        return text_of(bytes(self.shown))

    @property
    def longest_pause(self) -> float:
        """Seconds between two events."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


def text_of(stream: bytes) -> str:
    """All text of a stream's chunks."""
    chunks = [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for each in chunks for choice in each.get("choices") or ()]
    return "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)


def _post(body: dict[str, Any], *, resumable: bool) -> bytes:
    data = json.dumps({"model": "chat", "stream": True, **body}).encode()
    lines = ["POST /v1/chat/completions HTTP/1.0", "host: bench", "content-type: application/json"]
    lines += ["x-resumable: true"] if resumable else []
    return "\r\n".join([*lines, f"content-length: {len(data)}"]).encode() + b"\r\n\r\n" + data

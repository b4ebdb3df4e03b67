"""A client that costs as little as possible: requests on kept connections, events counted, first bytes timed."""

import asyncio
import json
import time
from typing import Any, cast

_LAST_CHUNK = b"0\r\n\r\n"


def request_bytes(body: dict[str, Any], *, pad: int = 2000, key: str | None = None) -> bytes:
    """A request with a prompt of ``pad`` bytes, with an API key if one is given."""
    data = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "x" * pad}], **body}).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: bench", "content-type: application/json"]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    return "\r\n".join([*lines, f"content-length: {len(data)}"]).encode() + b"\r\n\r\n" + data


class Client(asyncio.Protocol):
    """One connection. ``events`` counts over all its streams; ``first_event_seconds`` has one entry a stream."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._asked_at: float | None = None
        self._head: bytes | None = b""
        self._left: int | None = None
        self._carry = b""
        self.events = 0
        self.first_event_seconds: list[float] = []

    @classmethod
    async def connect(cls, port: int) -> "Client":
        """A client of a server on this machine."""
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    def ask(self, request: bytes) -> "asyncio.Future[None]":
        """Send a request; the future resolves at the end of its answer."""
        assert self._transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._head, self._left, self._carry = b"", None, b""
        self._asked_at = time.perf_counter()
        self._transport.write(request)
        return self._done

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(exc or ConnectionError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            head, ended, data = self._head.partition(b"\r\n\r\n")
            if not ended:
                return
            self._head = None
            if not head.startswith(b"HTTP/1.1 200"):
                self._finish(ConnectionError(head.split(b"\r\n")[0].decode()))
            length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
            self._left = int(length) if length else None
        self._take(data)

    def _take(self, data: bytes) -> None:
        # "data: " and the last chunk may lie across two reads; five bytes of the last one are enough to see it.
        text = self._carry + data
        self._carry = text[-5:]
        found = text.count(b"data: ")
        self.events += found
        if found and self._asked_at is not None:
            self.first_event_seconds.append(time.perf_counter() - self._asked_at)
            self._asked_at = None
        if self._left is not None:
            self._left -= len(data)
        if self._left == 0 or (self._left is None and text.endswith(_LAST_CHUNK)):
            self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

"""An engine that costs as little as possible: fixed events on a clock of its own.

A request may say ``{"events": N, "rate": R}``: N events of 215 bytes each, R a second, in a write each; rate 0 sends
them as fast as the socket takes them. ``"stream": false`` gets a short whole reply. It prints its
port and runs until it is killed: ``python -m bench.relay.synthetic_engine``.
"""

import asyncio
import json
from typing import Any, cast

import uvloop

from tidewheel.gateway.process import raise_file_limit

_TICK_SECONDS = 0.002
_BURST = 8  # unpaced events a turn: a fast engine, not one that buffers a whole reply
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_DONE = b"data: [DONE]\n\n"


def event() -> bytes:
    """One chunk of 215 bytes, as engines write it."""
    choice = {"index": 0, "delta": {"content": " token"}, "finish_reason": None}
    body = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": "chat"}
    text = json.dumps({**body, "choices": [choice], "pad": ""}, separators=(",", ":"))
    return f"data: {text[:-2]}{'x' * (215 - len(text) - 8)}{text[-2:]}\n\n".encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


EVENT = chunk(event())
END = chunk(_DONE) + b"0\r\n\r\n"
_USAGE = '"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}'
_REPLY = f'{{"object":"chat.completion","choices":[{{"message":{{"content":"hi there"}}}}],{_USAGE}}}'.encode()
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_REPLY), _REPLY)


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, streams: "set[Connection]") -> None:
        self._streams = streams
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._left = 0
        self._interval = 0.0
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._streams.discard(self)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET "):  # a proxy that looks whether its engine is well
            self._received = body
            assert self._transport is not None
            self._transport.write(WHOLE)
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or b"0")
        if len(body) >= length:
            self._received = body[length:]
            self._answer(json.loads(body[:length]))

    def _answer(self, asked: dict[str, Any]) -> None:
        assert self._transport is not None
        if not asked.get("stream"):
            self._transport.write(WHOLE)
            return
        self._left, rate = asked.get("events", 1), asked.get("rate", 0)
        self._interval = 1 / rate if rate else 0.0
        self._transport.write(_HEAD + EVENT)
        self._left -= 1
        self._due = asyncio.get_running_loop().time() + self._interval
        self._streams.add(self)

    def pause_writing(self) -> None:
        self._streams.discard(self)

    def resume_writing(self) -> None:
        self._streams.add(self)

    def send_due(self, now: float) -> None:
        """Everything that is due by now; unpaced streams get a burst, a write each."""
        assert self._transport is not None
        budget = _BURST if not self._interval else self._left
        while self._left and budget and (not self._interval or self._due <= now):
            self._transport.write(EVENT)
            self._left -= 1
            budget -= 1
            self._due += self._interval
        if not self._left:
            self._streams.discard(self)
            self._transport.write(END)


async def _main() -> None:
    streams: set[Connection] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(streams), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    while True:
        for stream in list(streams):
            stream.send_due(loop.time())
        unpaced = any(not stream._interval for stream in streams)
        await asyncio.sleep(0 if unpaced else _TICK_SECONDS)


if __name__ == "__main__":
    raise_file_limit()
    uvloop.run(_main())

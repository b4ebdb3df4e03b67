"""Thousands of requests that cost the test little: an engine that always says the same, a client that pipelines."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class _Answering(asyncio.Protocol):
    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if found and (length is None or len(body) >= int(length[1])):
            self._received = b""  # a gateway sends the next one after this answer
            self._transport.write(self._answer)


@asynccontextmanager
async def fixed_engine(body: bytes) -> AsyncIterator[str]:
    """The address of an engine that answers whatever it is asked with this JSON."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    server = await asyncio.get_running_loop().create_server(lambda: _Answering(answer), "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        server.close()


async def pipeline(port: int, requests: Sequence[bytes], *, at_once: int = 64) -> list[bytes]:
    """The heads of the answers, in order. Their bodies have a content-length."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heads = list[bytes]()
    try:
        for start in range(0, len(requests), at_once):
            some = requests[start : start + at_once]
            writer.write(b"".join(some))
            for _ in some:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                assert length is not None
                await reader.readexactly(int(length[1]))
                heads.append(head)
    finally:
        writer.transport.abort()
    return heads

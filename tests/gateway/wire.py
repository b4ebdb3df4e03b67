"""A client that shows what is on the wire."""

import asyncio
from dataclasses import dataclass, field

import orjson
from tests.gateway.programs import Gateway
from tests.waiting import PATIENCE_SECONDS

HI = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


@dataclass
class WireClient:
    """One connection to a gateway's data port."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    reads: list[bytes] = field(default_factory=list)

    async def read_head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.strip().split("\r\n")
        return int(line.split()[1]), {name: value for name, _, value in (item.partition(": ") for item in lines)}

    async def read_body(self, headers: dict[str, str]) -> bytes:
        """The body as its framing says."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            if "content-length" in headers:
                return await self.reader.readexactly(int(headers["content-length"]))
            if headers.get("transfer-encoding") != "chunked":
                return await self.reader.read()
            body = b""
            while chunk := await self.read_chunk():
                body += chunk
            return body

    async def read_chunk(self) -> bytes:
        """One chunk; empty at the end."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def read_all(self) -> tuple[int, dict[str, str], bytes]:
        """A whole answer."""
        status, headers = await self.read_head()
        return status, headers, await self.read_body(headers)

    async def at_end(self) -> bool:
        """Whether the gateway closed the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        """Go away at once."""
        self.writer.transport.abort()


async def open_client(gateway: Gateway) -> WireClient:
    """A new connection."""
    return WireClient(*await asyncio.open_connection("127.0.0.1", gateway.data_port))


def post(body: dict[str, object] | bytes, *headers: str, path: str = "/v1/chat/completions") -> bytes:
    """The bytes of a request."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [f"POST {path} HTTP/1.1", "host: gateway", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(data)}"]).encode() + b"\r\n\r\n" + data


async def ask(
    gateway: Gateway, body: dict[str, object] | bytes, *headers: str, path: str = "/v1/chat/completions"
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own, and its whole answer."""
    client = await open_client(gateway)
    client.writer.write(post(body, *headers, path=path))
    try:
        return await client.read_all()
    finally:
        await client.close()

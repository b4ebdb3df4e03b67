"""A TCP proxy that can be cut: TLS passes through it unread, so any identity keeps its own certificate."""

import asyncio
import contextlib
import socket
import struct
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

from tests.faults.looped import Looped


class Link(StrEnum):
    """What the proxy does with bytes."""

    OPEN = "open"
    STALLED = "stalled"
    REFUSED = "refused"


class TcpProxy(Looped):
    """``with TcpProxy(plane.url) as proxy:`` and give ``proxy.url`` to the program under test.

    It runs in a thread of its own; its methods may be called from anywhere and return when they hold.

    - ``refuse()``  open connections are reset, new ones get ECONNREFUSED: the API server is down.
    - ``stall()``   connections stay open and no byte passes; new ones are accepted and never answered: packets are
                    dropped behind a load balancer. The kernel here still acknowledges, so keep-alive notices nothing.
    - ``reset()``   open connections are reset, new ones work: an API server that started again.
    - ``heal()``    everything works again; bytes held back by ``stall`` arrive now, as TCP would deliver them.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__()
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        self._scheme = parts.scheme
        self._upstream = (parts.hostname, parts.port or 443)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._link = Link.OPEN
        self._flowing = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.accepted = 0

    @property
    def url(self) -> str:
        """Where the program under test connects to."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def refuse(self) -> None:
        """See the class."""
        self.run(self._set_link(Link.REFUSED))

    def stall(self) -> None:
        """See the class."""
        self.run(self._set_link(Link.STALLED))

    def heal(self) -> None:
        """See the class."""
        self.run(self._set_link(Link.OPEN))

    def reset(self) -> None:
        """See the class."""
        self.run(self._reset_connections())

    def __enter__(self) -> Self:
        super().__enter__()
        self.run(self._set_link(Link.OPEN))
        return self

    async def aclose(self) -> None:
        """Closes everything."""
        if self._server is not None:
            self._server.close()
        await self._reset_connections()

    async def _set_link(self, link: Link) -> None:
        self._link = link
        if link is Link.REFUSED:
            if self._server is not None:
                self._server.close()
                self._server = None
            await self._reset_connections()
        elif self._server is None:
            if self._listener.fileno() < 0:
                self._listener = socket.create_server(("127.0.0.1", self.port))
            self._server = await asyncio.start_server(self._accept, sock=self._listener)
        if link is Link.OPEN:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _reset_connections(self) -> None:
        for writer in list(self._writers):
            opened: socket.socket = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._writers.clear()
        await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        await self._flowing.wait()
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(upstream_writer)
        try:
            await asyncio.gather(self._pipe(reader, upstream_writer), self._pipe(upstream_reader, writer))
        finally:
            self._writers -= {writer, upstream_writer}
            writer.transport.abort()
            upstream_writer.transport.abort()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65536):
                await self._flowing.wait()
                writer.write(piece)
                await writer.drain()
            await self._flowing.wait()
            if writer.can_write_eof():
                writer.write_eof()
            else:
                writer.close()

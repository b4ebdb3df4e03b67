"""The line between the parent and a worker: JSON frames, each behind its length in four bytes, both ways."""

import asyncio
import socket
from typing import Any, Final

import orjson

_LENGTH_BYTES: Final = 4
_MOST_BYTES: Final = 256 * 1024 * 1024


class Line:
    """One end. ``receive`` gives None when the other end is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> "Line":
        """The line over a connected socket, which it owns from now on."""
        return cls(*await asyncio.open_connection(sock=sock))

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message; one to a peer that is gone is dropped."""
        if not self._writer.is_closing():
            body = orjson.dumps(message)
            self._writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    async def receive(self) -> dict[str, Any] | None:
        """The next message."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            if length > _MOST_BYTES:
                return None
            message: dict[str, Any] = orjson.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return message

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

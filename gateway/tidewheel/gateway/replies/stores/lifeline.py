"""How gateways tell a dead one from a late one: each listens on a port of its own, and says its name to whoever asks.

The kernel refuses a dead process's port at once, long before its sign of life in the store expires. And a gateway whose
sign expired because its machine is busy still answers. Where nothing can be heard (another network, a policy, a host
that is gone) the store's expiry alone decides.
"""

import asyncio
import socket
from enum import Enum, auto
from typing import Final, cast

from tidewheel.gateway.patience import patience

_MOST_BYTES: Final = 64
_ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})


class Sign(Enum):
    """What came of asking."""

    ALIVE = auto()
    GONE = auto()  # refused, or the port is somebody else's by now
    SILENT = auto()


class Lifeline:
    """Of this process, from ``open`` to its end."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._server: asyncio.Server | None = None

    async def open(self, host: str) -> str:
        """Its address for the others. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Word(self._name), host, 0, backlog=1024)
        port: int = self._server.sockets[0].getsockname()[1]
        return f"{host}|{port}"

    def close(self) -> None:
        """From now on it is refused."""
        if self._server is not None:
            self._server.close()


class _Word(asyncio.Protocol):
    def __init__(self, word: bytes) -> None:
        self._word = word

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        transport.write(self._word)
        transport.close()


async def ask(address: str, *, name: str, seconds: float) -> Sign:
    """Whether the gateway of this name is at that address."""
    host, _, port = address.partition("|")
    try:
        async with patience(seconds):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                word = await reader.read(_MOST_BYTES)
            finally:
                writer.transport.abort()
    except ConnectionRefusedError:
        return Sign.GONE
    except (OSError, TimeoutError, ValueError):
        return Sign.SILENT
    return Sign.ALIVE if word == name.encode() else Sign.GONE


def own_address(host: str, *, towards: tuple[str, int] | None) -> str:
    """Where others reach this process: the address it listens on, or else the one by which the store sees this machine.

    Nothing is sent. Raises OSError when the store's name is not known.
    """
    if host not in _ANY_ADDRESS:
        return host
    if towards is None:  # a store behind a file is shared by this machine only
        return "127.0.0.1"
    family, *_ = socket.getaddrinfo(*towards, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(towards)
        own: str = probe.getsockname()[0]
        return own

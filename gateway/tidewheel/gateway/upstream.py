"""Connections to engine replicas: one protocol object each, kept for the next request, no hidden limit on their number.

A connection carries one request at a time. What comes back is handed to a ``Listener`` as it is parsed, and after each
read ``on_read`` says that everything from this read was handed over, so that the listener writes once per read.
"""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

import httptools

from tidewheel.gateway.patience import patience
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.turns import Turns

_log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]

_KEEPALIVE_IDLE_SECONDS = 5
_KEEPALIVE_INTERVAL_SECONDS = 2
_KEEPALIVE_PROBES = 3
_MOST_IDLE = 256


class UnreachableError(Exception):
    """No connection: refused, unreachable, or not in time."""


class BrokenError(Exception):
    """The connection ended before the answer did. ``untouched`` says that no byte of the answer had come."""

    def __init__(self, message: str, *, untouched: bool) -> None:
        super().__init__(message)
        self.untouched = untouched


class Listener(Protocol):
    """Who takes a replica's answer."""

    def on_head(self, status: int, headers: Headers) -> None:
        """The status and headers of the answer; interim 1xx answers are left out."""

    def on_body(self, data: bytes) -> None:
        """Bytes of the body, without transfer coding."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_broken(self, error: BrokenError) -> None:
        """The answer will not be completed."""

    def on_read(self) -> None:
        """All that one read brought was handed over."""


class UpstreamConnection(asyncio.BufferedProtocol):
    """One TCP connection to a replica. What it reads beyond the budget of a turn is ``_held`` until it has one."""

    __slots__ = (
        "_body_until_close",
        "_head_bytes",
        "_headers",
        "_held",
        "_idle_timer",
        "_is_paused",
        "_listener",
        "_parser",
        "_pool",
        "_received",
        "_status",
        "_transport",
        "_turns",
        "reusable",
        "reused",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._turns = pool.turns
        self._held = b""
        self._is_paused = False
        self._transport: asyncio.Transport | None = None
        self._listener: Listener | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._headers: Headers = []
        self._head_bytes = 0
        self._status = 0
        self._received = False
        self._body_until_close = False
        self.reused = False
        self.reusable = False

    # What the exchange calls.

    def send(self, request: Sequence[bytes], listener: Listener) -> None:
        """Send one request, in one write; its answer goes to ``listener``."""
        assert self._transport is not None
        self._listener = listener
        self._parser = httptools.HttpResponseParser(self)
        self._received = self._body_until_close = self.reusable = self._is_paused = False
        self._head_bytes = self._status = 0
        if self._transport.is_closing():
            self._break("the replica closed the connection")  # between connecting and now; nobody will say it again
        else:
            self._transport.writelines(request)

    def pause(self) -> None:
        """Stop reading: the client takes nothing."""
        self._is_paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._held:
            self._turns.wait(self)
        else:
            self._read_on()

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def release(self) -> None:
        """Give the connection back: into the pool when its answer was complete, else closed at once."""
        self._listener = None
        if self.reusable and self._transport is not None and not self._transport.is_closing():
            self.resume()  # its last read may have been too much for the client
            self._pool.put(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close now; the replica sees it at once and frees the slot."""
        self._listener = None
        self._held = b""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def rest(self, seconds: float) -> None:
        """Idle in the pool; closed when nobody takes it in time."""
        self.reused = True
        self._idle_timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def wake(self) -> None:
        """Taken from the pool."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def take_turn(self) -> int:
        """Handle what was held back, and read on."""
        if self._is_paused:
            return 0  # it waits for its client first
        held, self._held = self._held, b""
        if held:
            self._take(held)
        if not self._is_paused:
            self._read_on()
        return len(held)

    # asyncio.BufferedProtocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket so that a silent peer is noticed."""
        transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                self._tune(sock)

    def _tune(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(self._pool.user_timeout * 1000))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read into: one for all, as each read is handled or copied before the next."""
        return self._turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """One read. A beginning is never held back: it is one read of each reply, and somebody waits for it."""
        turns = self._turns
        data = turns.buffer[:nbytes]
        if turns.left <= 0 and self._status and self._listener is not None:
            assert self._transport is not None
            self._held = bytes(data)
            self._transport.pause_reading()
            turns.wait(self)
            return
        turns.left -= nbytes
        if turns.left <= 0:
            turns.renew_soon()
        self._take(data)

    def _take(self, data: bytes | memoryview) -> None:
        listener = self._listener
        if listener is None or self._parser is None:
            self.abort()  # bytes that nobody asked for
            return
        self._received = True
        if self._status == 0:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            _log.exception("a listener failed")
            self._break("the answer could not be handled")
        except httptools.HttpParserError:
            self._break("the replica's answer is not HTTP/1.1")
        if self._status == 0 and self._head_bytes > self._pool.max_header_bytes:
            self._break("the headers of the replica's answer are too long")
        listener.on_read()

    def eof_received(self) -> bool:
        """The replica closes; connection_lost follows."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the listener, if its answer is not complete."""
        self._pool.forget(self)
        self.wake()
        if self._held:
            held, self._held = self._held, b""
            self._take(held)
        if self._body_until_close and exc is None and self._listener is not None:
            listener, self._listener = self._listener, None
            listener.on_end()
            listener.on_read()
        else:
            self._break("the replica closed the connection")

    def _break(self, message: str) -> None:
        listener, self._listener = self._listener, None
        self.reusable = False
        if listener is not None:
            listener.on_broken(BrokenError(message, untouched=not self._received))
        if self._transport is not None:
            self._transport.abort()

    # httptools callbacks.

    def on_message_begin(self) -> None:
        """A head begins; also after a 1xx answer. One that nobody asked for must not meet the next request."""
        if self._listener is None:
            self.reusable = False
        self._headers = []
        self._status = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer, which is dropped."""
        if self._status == 0:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand over the head."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200 or self._listener is None:
            return
        self._status = status
        self._body_until_close = not _is_framed(status, self._headers)
        self._listener.on_head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        """Hand over bytes of the body."""
        if self._listener is not None:
            self._listener.on_body(data)

    def on_message_complete(self) -> None:
        """Hand over the end."""
        if self._status == 0 or self._listener is None or self._parser is None:
            return
        self.reusable = self._parser.should_keep_alive() and not self._body_until_close
        listener, self._listener = self._listener, None
        listener.on_end()


def _is_framed(status: int, headers: Headers) -> bool:
    if status in {204, 304}:
        return True
    return any(name in {b"content-length", b"transfer-encoding"} for name, _ in headers)


class Pool:
    """Idle connections to one replica's address, newest first."""

    __slots__ = ("_closed", "_connections", "_idle", "_settings", "address", "turns")

    def __init__(self, host: str, port: int, *, settings: Settings, turns: Turns | None = None) -> None:
        """All pools of a loop share its ``turns``."""
        self.address = (host, port)
        self.turns = Turns() if turns is None else turns
        self._settings = settings
        self._idle: deque[UpstreamConnection] = deque()
        self._closed = False

    @property
    def settings(self) -> Settings:
        """Of the gateway."""
        return self._settings

    @property
    def user_timeout(self) -> float:
        """Seconds of unacknowledged silence after which a connection is dead."""
        return self._settings.user_timeout

    @property
    def max_header_bytes(self) -> int:
        """Longest head of an answer."""
        return self._settings.max_header_bytes

    @property
    def host_header(self) -> bytes:
        """Value of the Host header."""
        host, port = self.address
        return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()

    async def connect(self, *, fresh: bool = False) -> UpstreamConnection:
        """An idle connection, or a new one. Raises UnreachableError."""
        while self._idle and not fresh:
            connection = self._idle.pop()
            connection.wake()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        try:
            async with patience(self._settings.connect_timeout):
                _, connection = await loop.create_connection(lambda: UpstreamConnection(self), *self.address)
        except (OSError, TimeoutError) as error:
            raise UnreachableError(str(error) or "no connection in time") from None
        return connection

    def put(self, connection: UpstreamConnection) -> None:
        """Take a connection back."""
        if self._closed or len(self._idle) >= _MOST_IDLE:
            connection.abort()
            return
        self._idle.append(connection)
        connection.rest(self._settings.pool_idle_timeout)

    def forget(self, connection: UpstreamConnection) -> None:
        """It closed while idle."""
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """Close idle connections now, and those in use when they are given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

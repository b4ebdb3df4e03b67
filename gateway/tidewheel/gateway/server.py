"""Client connections: one protocol object each, one answer at a time, one write per turn of the loop."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, Protocol, cast

from tidewheel.gateway.errors import GatewayError, InvalidRequestError
from tidewheel.gateway.requests import Phase, Request, RequestParser
from tidewheel.gateway.settings import Settings

_log = logging.getLogger(__name__)

_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_LINGER_SECONDS: Final = 2.0

HeaderList = Sequence[tuple[str, str]]


class App(Protocol):
    """What a server does with requests."""

    @property
    def draining(self) -> bool:
        """Whether connections are to be closed after their present request."""

    def handle(self, request: Request, responder: "Responder") -> None:
        """Answer now, or start what will; must not block."""


def _nothing() -> None:
    pass


class Responder:
    """The one answer to one request. Whoever answers may hang on ``on_gone``, ``on_pause`` and ``on_resume``."""

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_connection",
        "_keep_alive",
        "_pending",
        "also",
        "finished",
        "on_gone",
        "on_pause",
        "on_resume",
        "started",
        "status",
    )

    def __init__(self, connection: "ClientConnection", request: Request) -> None:
        self._connection = connection
        self._chunked = request.chunked_replies
        self._keep_alive = request.keep_alive
        self._bodiless = request.method == "HEAD"
        self._pending = b""
        self.also: HeaderList = ()  # headers of whatever the answer will be
        self.status: int | None = None
        self.started = False
        self.finished = False
        self.on_gone: Callable[[], object] = _nothing
        self.on_pause: Callable[[], object] = _nothing
        self.on_resume: Callable[[], object] = _nothing

    def send(self, status: int, body: bytes, *, headers: HeaderList) -> None:
        """The whole answer at once."""
        keep = self._keep_alive and not self._connection.draining
        head = _head(status, [*headers, *self.also, ("content-length", str(len(body)))], close=not keep)
        self._begin(status)
        self._connection.write(head if self._bodiless else head + body)
        self._finish(close=not keep)

    def send_error(self, error: GatewayError, headers: HeaderList = ()) -> None:
        """A typed error as the whole answer."""
        all_headers = [("content-type", "application/json"), *headers, *error.response_headers()]
        self.send(error.status, error.to_json(), headers=all_headers)

    def start(self, status: int, headers: HeaderList) -> None:
        """Begin an answer of unknown length; its head leaves with the first bytes."""
        self._begin(status)
        self._keep_alive = self._keep_alive and self._chunked and not self._connection.draining
        framing = [("transfer-encoding", "chunked")] if self._chunked else []
        self._pending = _head(status, [*headers, *self.also, *framing], close=not self._keep_alive)

    def write(self, pieces: Sequence[bytes]) -> None:
        """Send pieces as one chunk, in one write."""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if not data:
            return  # an empty chunk would be the end
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._pending:
            data, self._pending = self._pending + data, b""
        self._connection.write(data)

    def end(self, *, close: bool = False) -> None:
        """The answer is complete; ``close`` ends the connection too."""
        rest, self._pending = self._pending + (b"0\r\n\r\n" if self._chunked else b""), b""
        if rest:
            self._connection.write(rest)
        self._finish(close=close or not self._keep_alive)

    def abort(self) -> None:
        """Cut the connection: there is nothing true left to say on it."""
        self.finished = True
        self._connection.abort()

    def _begin(self, status: int) -> None:
        assert not self.started, "one answer per request"
        self.started = True
        self.status = status

    def _finish(self, *, close: bool) -> None:
        self.finished = True
        self._connection.answered(close=close)


def _head(status: int, headers: HeaderList, *, close: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if close:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


class ClientConnection(asyncio.Protocol):
    """Reads requests, hands them on one by one, notices when the client goes or takes nothing."""

    __slots__ = (
        "_app",
        "_closing",
        "_connections",
        "_current",
        "_loop",
        "_parser",
        "_queue",
        "_settings",
        "_since",
        "_stall_timer",
        "_timer",
        "_transport",
    )

    def __init__(self, app: App, settings: Settings, *, connections: "set[ClientConnection]") -> None:
        self._app = app
        self._settings = settings
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser(settings)
        self._queue: deque[Request] = deque()
        self._current: Responder | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._closing = False

    @property
    def draining(self) -> bool:
        """Whether the program is about to leave."""
        return self._app.draining

    @property
    def idle(self) -> bool:
        """No request is open."""
        return self._current is None

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock for the first request."""
        transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._transport = transport
        self._connections.add(self)
        transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        self._watch(self._settings.keep_alive_timeout)

    def data_received(self, data: bytes) -> None:
        """Parse one read."""
        if self._closing:
            return  # lingering: the client may still be sending what was refused
        was_idle = self._parser.phase is Phase.IDLE
        try:
            requests = self._parser.feed(data)
        except InvalidRequestError as error:
            self._refuse(error)
            return
        self._queue.extend(requests)
        if self._parser.phase is not Phase.IDLE:
            self._expect_more(fresh=was_idle or bool(requests))
        if self._queue and self._current is not None and self._transport is not None:
            self._transport.pause_reading()  # pipelined: what is unread cannot pile up here
        self._next()

    def eof_received(self) -> bool:
        """The client will send nothing more; as with a reset, it is taken as gone."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: whoever answers it stops."""
        self._connections.discard(self)
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._queue.clear()
        current, self._current = self._current, None
        if current is not None:
            current.on_gone()

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self._stall_timer = self._loop.call_later(self._settings.stalled_reader_timeout, self.abort)
        if self._current is not None:
            self._current.on_pause()

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._current is not None:
            self._current.on_resume()

    # What a Responder calls.

    def write(self, data: bytes) -> None:
        """Bytes of the present answer."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def answered(self, *, close: bool) -> None:
        """The present request has its answer."""
        self._current = None
        if close:
            self._close_gently()
        elif self._parser.phase is Phase.IDLE:
            self._watch(self._settings.keep_alive_timeout)
            if self._queue:
                self._loop.call_soon(self._next)
            elif self._transport is not None:
                self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, whatever is unsent."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Used when the program leaves."""
        if self.idle and self._parser.phase is Phase.IDLE and not self._queue and self._transport is not None:
            self._transport.close()

    # The inside.

    def _next(self) -> None:
        if self._current is not None or not self._queue or self._closing:
            return
        request = self._queue.popleft()
        responder = self._current = Responder(self, request)
        try:
            self._app.handle(request, responder)
        except Exception:
            _log.exception("a request handler failed")
            if not responder.started:
                responder.send_error(GatewayError(500, "The gateway failed; try again.", code="internal_error"))

    def _expect_more(self, *, fresh: bool) -> None:
        assert self._transport is not None
        if fresh:
            self._since = self._loop.time()
            self._watch(self._settings.header_timeout)
        if self._parser.phase is Phase.BODY and self._parser.expects_continue:
            self._parser.expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _watch(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._check_time)

    def _check_time(self) -> None:
        phase, settings = self._parser.phase, self._settings
        if phase is Phase.IDLE:
            if self.idle:
                self.abort()
            return
        waited = self._loop.time() - self._since
        if phase is Phase.HEAD and waited >= settings.header_timeout:
            self._refuse(_too_slow("headers were", settings.header_timeout))
            return
        due = settings.header_timeout + settings.body_timeout + self._parser.body_bytes / settings.min_body_rate
        if phase is Phase.BODY and waited >= due:
            self._refuse(_too_slow("body was", waited))
            return
        self._watch(max(0.05, (settings.header_timeout if phase is Phase.HEAD else due) - waited))

    def _refuse(self, error: InvalidRequestError) -> None:
        if self._current is not None:
            self.abort()  # the next request is bad while one is answered: pipelining into the unknown
            return
        request = Request("", "", "", {}, b"", keep_alive=False, chunked_replies=True)
        self._current = Responder(self, request)
        self._current.send_error(error)

    def _close_gently(self) -> None:
        """Send what is written, then let the client read it: closing with unread input would reset the connection."""
        self._closing = True
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER_SECONDS, self.abort)


def _too_slow(what: str, seconds: float) -> InvalidRequestError:
    message = f"The request's {what} not complete after {seconds:.0f} seconds; send faster."
    return InvalidRequestError(message, status=408, code="request_timeout")

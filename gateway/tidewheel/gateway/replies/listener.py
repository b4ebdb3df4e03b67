"""One client connection that follows a reply.

It shows what the log has accepted, from any number on. A reader that takes nothing is not waited for: the log absorbs,
and one that falls too far behind is dropped, to resume when it likes. Only a reply that cannot be resumed makes its
replica wait instead.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypedDict

from tidewheel.gateway.replies.tokenlog import TokenLog
from tidewheel.gateway.server import HeaderList, Responder

HEARTBEAT: Final = b": ping\n"  # one newline: a blank line after a comment makes openai's client parse an empty event
STREAM_HEADERS: Final = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache, no-transform"),
    ("x-accel-buffering", "no"),
)
REPLAY_BYTES: Final = 64 * 1024  # one write; the transport says when it takes no more


class ListenerOptions(TypedDict):
    """What every kind of listener is made with."""

    headers: Callable[[], HeaderList]
    patient: bool
    max_lag: int


class Listener:
    """``position`` is the number of the last event that was written to the connection."""

    __slots__ = (
        "_caught_up",
        "_max_lag",
        "_patient",
        "_responder",
        "headers",
        "paused",
        "position",
    )

    def __init__(
        self, responder: Responder, *, after: int = 0, headers: Callable[[], HeaderList], patient: bool, max_lag: int
    ) -> None:
        """A ``patient`` one is written to even when it takes nothing: its reply cannot show an event again."""
        self._responder = responder
        self._max_lag = max_lag
        self._patient = patient
        self._caught_up = False
        self.headers = headers
        self.position = after
        self.paused = False

    @property
    def responder(self) -> Responder:
        """The connection's answer."""
        return self._responder

    def show(self, frames: Sequence[bytes], *, log: TokenLog, first: int, last: int) -> None:
        """Events ``first`` to ``last`` are new. Written at once when this listener has seen all before them."""
        if self.position == first - 1 and (self._patient or not self.paused):
            self.position = last
            self._caught_up = True
            self._write(frames)
        else:
            self.pump(log, upto=last)

    def pump(self, log: TokenLog, *, upto: int) -> None:
        """Write what is missing, as far as the connection takes it."""
        while self.position < upto and not self.paused and not self._responder.finished:
            last = log.fitting(self.position, upto, max_bytes=REPLAY_BYTES)
            piece = log.since(self.position, last)
            self.position = last
            self._write([piece])
        if self.position == upto:
            self._caught_up = True
        elif self._caught_up and not self._responder.finished and log.bytes_since(self.position) > self._max_lag:
            self._responder.abort()

    def beat(self) -> None:
        """Keep proxies and clients from giving up."""
        if not self.paused:
            self._write([HEARTBEAT])

    def finish(self, *, close: bool) -> None:
        """End after the last event."""
        if not self._responder.finished:
            if not self._responder.started:
                self._start()
            self._responder.end(close=close)

    def answer(self, status: int, body: bytes, headers: HeaderList) -> None:
        """A whole answer instead of a stream."""
        if not self._responder.finished:
            self._responder.send(status, body, headers=headers)

    def write_raw(self, pieces: Sequence[bytes]) -> None:
        """Bytes that are not in the log."""
        self._write(pieces)

    def cut(self) -> None:
        """Hang up; the client resumes elsewhere."""
        if not self._responder.finished:
            self._responder.abort()

    def _write(self, pieces: Sequence[bytes]) -> None:
        responder = self._responder
        if responder.finished:
            return
        if not responder.started:
            self._start()
        responder.write(pieces)

    def _start(self) -> None:
        self._responder.start(200, [*STREAM_HEADERS, *self.headers()])

"""A replica's answer to one attempt.

Streams pass event by event into the reply: a whole event as soon as it is there, half an event never. Everything else
is held until it is complete, so that a reply cut short becomes a typed error instead of a broken body.
"""

import asyncio
from collections.abc import Callable

from tidewheel.gateway.observation import InvalidReplyError, ReplyObserver
from tidewheel.gateway.replies.reading import EngineLeavesError, Reader
from tidewheel.gateway.replies.reply import Reply
from tidewheel.gateway.replies.tokenlog import Emission
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.sse import EventSplitter, EventTooLongError
from tidewheel.gateway.upstream import BrokenError, Headers


class SilenceError(Exception):
    """The replica was silent for too long."""


class Answer:
    """Listener of one attempt. ``done`` resolves to None when the answer is complete, else to the reason why not.

    ``on_alive`` is called at each read: the replica answers, however long the rest may take.
    """

    __slots__ = (
        "_emissions",
        "_loop",
        "_max_body",
        "_on_alive",
        "_reader",
        "_reply",
        "_splitter",
        "body",
        "done",
        "headers",
        "last_read",
        "observer",
        "paused",
        "status",
        "streaming",
    )

    def __init__(
        self,
        reply: Reply,
        reader: Reader,
        observer: ReplyObserver,
        settings: Settings,
        *,
        on_alive: Callable[[float], object],
    ) -> None:
        self._reply = reply
        self._reader = reader
        self._on_alive = on_alive
        self._loop = asyncio.get_running_loop()
        self._max_body = settings.max_reply_bytes
        self._splitter = EventSplitter(settings.max_event_bytes)
        self._emissions: list[Emission] = []
        self.observer = observer
        self.done: asyncio.Future[Exception | None] = self._loop.create_future()
        self.status = 0
        self.headers: Headers = []
        self.body = bytearray()
        self.streaming = False
        self.paused = False
        self.last_read = self._loop.time()

    def on_head(self, status: int, headers: Headers) -> None:
        """Decide whether this is a stream to show."""
        self._on_alive(self._loop.time())
        self.status = status
        self.headers = headers
        kind = self.header(b"content-type")
        self.streaming = self._reply.stream and status == 200 and kind.startswith(b"text/event-stream")

    def on_body(self, data: bytes) -> None:
        """Collect whole events, or the body."""
        if self.done.done():
            return
        if not self.streaming:
            self.body += data
            if len(self.body) > self._max_body:
                self._fail(InvalidReplyError(f"the reply is longer than {self._max_body} bytes"))
            return
        now = self._loop.time()
        if not self._splitter.pending:
            ordinary = self._reader.ordinary(data, now=now)
            if ordinary is not None:
                self._emissions.append(ordinary)
                return
        try:
            for event in self._splitter.feed(data):
                self._emissions += self._reader.read(event, now=now)
        except (EventTooLongError, InvalidReplyError, EngineLeavesError) as error:
            self._fail(error)

    def on_read(self) -> None:
        """One write for all events of one read."""
        self.last_read = now = self._loop.time()
        self._on_alive(now)
        if self._emissions:
            emissions, self._emissions = self._emissions, []
            self._reply.show(emissions)

    def on_end(self) -> None:
        """Complete only if the protocol says so too: a stream without its last event was cut by something between."""
        if self.done.done():
            return
        if self.streaming:
            self._take_unterminated()
            if not (self.observer.done or self.observer.failed):
                self._fail(BrokenError("the stream ended without its last event", untouched=False))
                return
        if not self.done.done():
            self.done.set_result(None)

    def on_broken(self, error: BrokenError) -> None:
        """Whole events that came before are shown; the rest is not."""
        self._fail(error)

    def header(self, name: bytes) -> bytes:
        """A header of the answer, or nothing."""
        return next((value for known, value in self.headers if known == name), b"").strip()

    def resume(self) -> None:
        """The client takes bytes again; the pause before was not the replica's."""
        self.paused = False
        self.last_read = self._loop.time()
        self.observer.forgive_pause(self.last_read)

    def time_out(self, message: str) -> None:
        """The replica has been silent for too long."""
        self._fail(SilenceError(message))

    def _take_unterminated(self) -> None:
        rest = self._splitter.pending
        if not rest.strip():
            return
        try:
            self._emissions += self._reader.read(rest + b"\n\n", now=self._loop.time())
        except (InvalidReplyError, EngineLeavesError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_result(error)

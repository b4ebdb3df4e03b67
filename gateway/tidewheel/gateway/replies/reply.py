"""A reply in the making, whoever listens.

Its producer shows events; they are numbered, logged, and shown to every listener once the log has accepted them. It
ends once: the first word counts. When nobody listens any more, one that can be resumed waits a while for somebody,
and one that cannot is given up at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import orjson

from tidewheel.gateway.replies.listener import REPLAY_BYTES, Listener
from tidewheel.gateway.replies.tokenlog import Emission, TokenLog, unnumbered
from tidewheel.gateway.server import HeaderList
from tidewheel.gateway.snapshot import VersionKey

EndKind = Literal["completed", "incomplete", "failed", "cancelled"]
DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that is not a stream."""

    status: int
    body: bytes
    headers: HeaderList


@dataclass(frozen=True, slots=True)
class Ending:
    """How a reply ended. ``answer`` is set when it is no stream, or ended before its first event."""

    kind: EndKind
    code: str | None = None
    answer: WholeAnswer | None = None


_MOVED: Final = Ending("incomplete", "moved")


class Journal(Protocol):
    """Takes what a reply shows before it is shown; says later how far it got."""

    def append(self, frames: Sequence[bytes], emissions: Sequence[Emission], *, count: int, urgent: bool) -> None:
        """Frames, each of its emission; ``count`` is the number of the last one."""

    def end(self, ending: Ending) -> None:
        """The reply is complete."""


def _nothing() -> None:
    pass


class Reply:
    """``on_abandoned`` is called when the producer should stop: cancelled, or nobody has listened for too long."""

    def __init__(
        self,
        reply_id: str,
        *,
        scope: str,
        stream: bool,
        resumable: bool,
        keeps_text: bool,
        listener_timeout: float,
        created: int = 0,
    ) -> None:
        self.id = reply_id
        self.scope = scope
        self.stream = stream
        self.resumable = resumable
        self.created = created
        self.model = ""
        self.version = ""
        self.key: VersionKey | None = None
        self.log = TokenLog(keeps_text=keeps_text)
        self.shown = 0  # the number up to which listeners may see
        self.ending: Ending | None = None
        self.background = False  # goes on although nobody listens
        self.response: dict[str, Any] | None = None  # what its response object repeats, if it was asked for as one
        self.listeners: set[Listener] = set()
        self.on_abandoned: Callable[[], object] = _nothing
        self.on_pause: Callable[[], object] = _nothing
        self.on_resume: Callable[[], object] = _nothing
        self.on_ended: Callable[[], object] = _nothing
        self.on_progress: Callable[[], object] | None = None  # at the next events
        self.is_mirror = False  # another gateway writes it
        self.listened_elsewhere: Callable[[], Awaitable[bool]] | None = None
        self._journal: Journal | None = None
        self._asking: asyncio.Task[None] | None = None
        self._numbered = True
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._listener_timeout = listener_timeout
        self._lonely: asyncio.TimerHandle | None = None
        self.last_write = self._loop.time()

    # What the producer calls.

    def keep_in(self, journal: Journal) -> None:
        """From now on events wait for this journal before they are shown."""
        self._journal = journal

    def show(self, emissions: Sequence[Emission]) -> None:
        """Events of one read."""
        if self.ending is not None or not emissions:
            return
        if self.on_progress is not None:
            self.on_progress()
        first = self.log.count + 1
        if not self._numbered:
            self._show_unnumbered(emissions)
            return
        frames = self.log.append(emissions)
        if self._journal is not None:
            self._journal.append(frames, emissions, count=self.log.count, urgent=first <= 2)
            return
        self.shown = last = self.log.count
        self.last_write = self._loop.time()
        for listener in list(self.listeners):
            listener.show(frames, log=self.log, first=first, last=last)

    def beat(self) -> None:
        """Tell every listener that the silence is meant."""
        self.last_write = self._loop.time()
        for listener in list(self.listeners):
            listener.beat()

    def finish(self, kind: EndKind = "completed") -> bool:
        """After the last event. False when it had ended already."""
        return self._end(Ending(kind))

    def fail(self, event: bytes, *, code: str, kind: EndKind = "failed", answer: WholeAnswer | None = None) -> bool:
        """End with an explicit event: a stream that just stops is taken as complete.

        ``answer`` is for clients that have seen nothing of the stream yet, not even a heartbeat.
        """
        if self.ending is not None:
            return False
        untouched = self.log.count == 0
        if self.stream:
            if untouched and answer is not None:
                self._answer_those_who_saw_nothing(answer)
            self.show([Emission(event)])
        return self._end(Ending(kind, code, answer if untouched or not self.stream else None))

    def answer(self, answer: WholeAnswer, *, kind: EndKind = "completed", code: str | None = None) -> bool:
        """The whole reply at once."""
        return self._end(Ending(kind, code, answer))

    def cancel(self, *, code: str) -> bool:
        """End from outside; the producer stops. False when it had ended already."""
        if self.ending is not None:
            return False
        body = orjson.dumps({"error": _cancelled(code)})
        ended = self.fail(
            b"event: error\ndata: " + body + b"\n\n",
            code=code,
            kind="cancelled",
            answer=WholeAnswer(409, body, [("content-type", "application/json"), ("x-should-retry", "false")]),
        )
        self.on_abandoned()
        return ended

    # What the journal calls.

    def acknowledged(self, count: int) -> None:
        """The log has accepted events up to ``count``."""
        if count <= self.shown or not self._numbered:
            return
        first, self.shown = self.shown + 1, count
        self.last_write = self._loop.time()
        if self.log.bytes_since(first - 1) <= REPLAY_BYTES:
            frames = [self.log.since(first - 1, count)]
            for listener in list(self.listeners):
                listener.show(frames, log=self.log, first=first, last=count)
        else:
            for listener in list(self.listeners):
                listener.pump(self.log, upto=count)
        self._close_if_shown()

    def lose_journal(self, notice: bytes) -> None:
        """The log is away. What it has not accepted gets no number; from here on the reply cannot be resumed."""
        if self._journal is None or not self._numbered:
            return
        rest = unnumbered(self.log.since(self.shown))
        self._journal, self._numbered, self.resumable = None, False, False
        for listener in list(self.listeners):
            listener.paused = False  # the transport buffers what the log no longer can
            listener.pump(self.log, upto=self.shown)
            if self.stream:
                listener.write_raw([notice, rest])
        self.log.drop_text()
        self.shown = self.log.count
        self._close_if_shown()
        if not self.listeners:
            self._start_waiting()

    # Listeners.

    def attach(self, listener: Listener) -> None:
        """Show a listener everything after its position, then what comes."""
        if self._lonely is not None:
            self._lonely.cancel()
            self._lonely = None
        self.listeners.add(listener)
        responder = listener.responder
        responder.on_gone = lambda: self.detach(listener)
        responder.on_pause = lambda: self._paused(listener)
        responder.on_resume = lambda: self._resumed(listener)
        if self.log.keeps_text and (self.ending is None or self.ending.answer is None):
            listener.pump(self.log, upto=self.shown)
        if self._closed:
            self._close_listener(listener)

    def detach(self, listener: Listener) -> None:
        """A listener is gone."""
        self.listeners.discard(listener)
        if not self.listeners and self.ending is None:
            self._start_waiting()

    @property
    def is_journalled(self) -> bool:
        """Whether a store takes its events, so that another gateway could carry on."""
        return self._journal is not None

    @property
    def moved(self) -> bool:
        """It has not ended: another gateway carries on."""
        return self.ending == _MOVED

    def end_as(self, ending: Ending) -> bool:
        """It ended on another gateway."""
        return self._end(ending)

    def await_listener(self) -> None:
        """Nobody listens yet: the clock starts."""
        if not self.listeners and self.ending is None:
            self._start_waiting()

    def leave_to_another(self) -> None:
        """Another gateway carries on: hang up without an end, so that clients resume there."""
        if self.ending is not None:
            return
        self.ending = _MOVED
        for listener in list(self.listeners):
            listener.cut()
        self.listeners.clear()
        self.on_ended()

    # The inside.

    def _start_waiting(self) -> None:
        if not self.resumable or self.is_mirror:
            self.on_abandoned()
        elif not self.background:
            self._lonely = self._loop.call_later(self._listener_timeout, self._give_up)

    def _give_up(self) -> None:
        self._lonely = None
        if self.listened_elsewhere is None:
            self._cancel_if_lonely(listened=False)
        else:
            self._asking = self._loop.create_task(self._ask_elsewhere(self.listened_elsewhere))

    async def _ask_elsewhere(self, listened: Callable[[], Awaitable[bool]]) -> None:
        self._cancel_if_lonely(listened=await listened())

    def _cancel_if_lonely(self, *, listened: bool) -> None:
        if self.listeners or self.ending is not None:
            return
        if listened:
            self._lonely = self._loop.call_later(self._listener_timeout, self._give_up)
        else:
            self.cancel(code="no_listener")

    def _answer_those_who_saw_nothing(self, answer: WholeAnswer) -> None:
        for listener in [listener for listener in self.listeners if not listener.responder.started]:
            listener.answer(answer.status, answer.body, [*answer.headers, *listener.headers()])
            self.listeners.discard(listener)

    def _show_unnumbered(self, emissions: Sequence[Emission]) -> None:
        self.log.append(emissions)
        self.shown = self.log.count
        self.last_write = self._loop.time()
        for listener in list(self.listeners):
            listener.write_raw([emission.event for emission in emissions])

    def _end(self, ending: Ending) -> bool:
        if self.ending is not None:
            return False
        self.ending = ending
        if self._lonely is not None:
            self._lonely.cancel()
            self._lonely = None
        if self._journal is not None:
            self._journal.end(ending)
        self.on_ended()
        self._close_if_shown()
        return True

    def end_accepted(self) -> None:
        """The journal has the end as well."""
        self._journal = None
        self._close_if_shown()

    def _close_if_shown(self) -> None:
        if self._closed or self.ending is None or self._journal is not None or self.shown < self.log.count:
            return
        self._closed = True
        for listener in list(self.listeners):
            self._close_listener(listener)

    def _close_listener(self, listener: Listener) -> None:
        ending = self.ending
        assert ending is not None
        if ending.answer is not None and not listener.responder.started:
            listener.answer(ending.answer.status, ending.answer.body, [*ending.answer.headers, *listener.headers()])
        elif listener.position >= self.shown or not self.log.keeps_text:
            listener.finish(close=ending.kind in {"failed", "cancelled"})
        else:
            return  # still reading; it ends when it has taken everything
        self.listeners.discard(listener)

    def _paused(self, listener: Listener) -> None:
        listener.paused = True
        if not self.resumable:
            self.on_pause()

    def _resumed(self, listener: Listener) -> None:
        listener.paused = False
        if not self.resumable:
            self.on_resume()
        if self.log.keeps_text:
            listener.pump(self.log, upto=self.shown)
        if self._closed and not listener.paused:
            self._close_listener(listener)


def _cancelled(code: str) -> dict[str, object]:
    messages = {
        "no_listener": "Nobody listened to this reply for too long, so it was cancelled.",
        "erased": "This reply was erased.",
    }
    message = messages.get(code, "This reply was cancelled.")
    return {"message": message, "type": "invalid_request_error", "param": None, "code": code}

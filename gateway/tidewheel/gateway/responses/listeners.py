"""Client connections that follow a response: as events, as one object at its end, or only until it is accepted."""

from collections.abc import Sequence
from typing import Final, Unpack

import orjson

from tidewheel.gateway.replies.listener import HEARTBEAT, Listener, ListenerOptions
from tidewheel.gateway.replies.reply import Reply
from tidewheel.gateway.responses.asking import Asking
from tidewheel.gateway.responses.fold import ACCEPTED, ResponseFold
from tidewheel.gateway.server import Responder

JSON: Final = ("content-type", "application/json")


def fold_of(reply: Reply) -> ResponseFold:
    """Of a reply that was asked for as a response, before its first event."""
    assert reply.response is not None, "only responses are told as such"
    return ResponseFold(reply.id, created=reply.created, echo=reply.response)


def accepted_event(reply_id: str) -> bytes:
    """The first event of a response in the background: it is ours to produce from here on."""
    chunk = {"id": reply_id, "object": "chat.completion.chunk", "choices": [], "tidewheel": {"type": ACCEPTED}}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


class EventListener(Listener):
    """Shows events after a sequence number. It reads the log from its beginning, whatever it shows of it."""

    __slots__ = ("_fold", "_seen")

    def __init__(
        self, responder: Responder, reply: Reply, *, seen: int = -1, **options: Unpack[ListenerOptions]
    ) -> None:
        super().__init__(responder, **options)
        self._fold = fold_of(reply)
        self._seen = seen

    def beat(self) -> None:
        """See Listener."""
        if not self.paused:
            super()._write([HEARTBEAT])

    def finish(self, *, close: bool) -> None:
        """See Listener."""
        self._tell(self._fold.close())
        super().finish(close=close)

    def _write(self, pieces: Sequence[bytes]) -> None:
        self._tell(self._fold.feed(b"".join(pieces)))

    def _tell(self, events: Sequence[tuple[int, bytes]]) -> None:
        super()._write([event for number, event in events if number > self._seen])


class WholeListener(Listener):
    """Answers with the response object when it is complete. One that failed after its first event is an object too:
    it keeps the text."""

    __slots__ = ("_fold",)

    def __init__(self, responder: Responder, reply: Reply, **options: Unpack[ListenerOptions]) -> None:
        super().__init__(responder, **options)
        self._fold = fold_of(reply)

    def beat(self) -> None:
        """Nothing can be said before the end."""

    def finish(self, *, close: bool) -> None:
        """See Listener."""
        self._fold.close()
        self.answer(200, orjson.dumps(self._fold.document()), [JSON, *self.headers()])

    def _write(self, pieces: Sequence[bytes]) -> None:
        self._fold.feed(b"".join(pieces))


class ReceiptListener(WholeListener):
    """Answers with the response object as soon as there is anything to tell, and leaves."""

    __slots__ = ("_reply",)

    def __init__(self, responder: Responder, reply: Reply, **options: Unpack[ListenerOptions]) -> None:
        super().__init__(responder, reply, **options)
        self._reply = reply

    def _write(self, pieces: Sequence[bytes]) -> None:
        super()._write(pieces)
        if not self.responder.finished:
            self.answer(200, orjson.dumps(self._fold.document()), [JSON, *self.headers()])
            self._reply.detach(self)


def listener_for(asking: Asking, responder: Responder, reply: Reply, options: ListenerOptions) -> Listener:
    """As the request wants it."""
    if asking.stream:
        return EventListener(responder, reply, **options)
    kind = ReceiptListener if asking.background else WholeListener
    return kind(responder, reply, **options)

"""One reply and its listeners, without a network."""

from typing import Any

import pytest

from tidewheel.gateway.replies.listener import Listener
from tidewheel.gateway.replies.reply import DONE, Reply
from tidewheel.gateway.replies.tokenlog import Emission, TokenLog, unnumbered


class Wire:
    """A connection that takes ``room`` bytes, then says that it is full."""

    def __init__(self, room: int = 1 << 40) -> None:
        self.room = room
        self.taken = b""
        self.started = self.finished = self.aborted = False
        self.status: int | None = None
        self.on_gone = self.on_pause = self.on_resume = lambda: None

    def start(self, status: int, headers: object) -> None:
        self.started, self.status = True, status

    def write(self, pieces: Any) -> None:
        self.taken += b"".join(pieces)
        if len(self.taken) >= self.room:
            self.on_pause()

    def send(self, status: int, body: bytes, *, headers: object) -> None:
        self.started = self.finished = True
        self.status, self.taken = status, body

    def end(self, *, close: bool = False) -> None:
        self.finished = True

    def abort(self) -> None:
        self.finished = self.aborted = True
        self.on_gone()


def listener(wire: Wire, *, after: int = 0, max_lag: int = 1000, patient: bool = False) -> Listener:
    return Listener(wire, after=after, headers=list, patient=patient, max_lag=max_lag)  # type: ignore[arg-type]


def reply(*, resumable: bool = True) -> Reply:
    return Reply("r", scope="s", stream=True, resumable=resumable, keeps_text=resumable, listener_timeout=30)


def said(count: int) -> list[Emission]:
    return [Emission(b"data: %d\n\n" % number, [number]) for number in range(count)]


async def test_a_reader_that_falls_behind_is_dropped_and_resumes_where_it_was() -> None:
    """bun#32469, vercel/ai#9475: the log absorbs, memory per reader is bounded, nothing is lost."""
    slow, quick, again = Wire(room=50), Wire(), Wire()
    ours = reply()
    ours.attach(listener(slow))
    ours.attach(listener(quick))
    for emission in said(500):
        ours.show([emission])
    assert slow.aborted
    assert len(slow.taken) < 200
    ours.show([Emission(DONE)])
    ours.finish()
    ours.attach(listener(again, after=slow.taken.count(b"id: ")))
    assert slow.taken + again.taken == quick.taken
    assert quick.finished
    assert again.finished


async def test_a_reader_that_pauses_gets_the_rest_when_it_reads_again() -> None:
    wire, ours = Wire(room=20), reply()
    ours.attach(listener(wire, max_lag=1 << 20))
    ours.show(said(3))
    ours.show(said(50))
    ours.finish()
    assert not wire.finished
    wire.room = 1 << 40
    wire.on_resume()
    assert wire.finished
    assert wire.taken.count(b"id: ") == 53


async def test_the_first_end_counts_and_nothing_follows_it() -> None:
    wire, ours = Wire(), reply()
    ours.attach(listener(wire))
    ours.show(said(1))
    assert ours.cancel(code="cancelled")
    assert not ours.finish()
    assert not ours.fail(b"data: x\n\n", code="late")
    ours.show(said(1))
    assert wire.taken.count(b"id: ") == 2
    assert b"cancelled" in wire.taken
    assert ours.ending is not None
    assert ours.ending.kind == "cancelled"


async def test_a_reply_that_cannot_be_resumed_is_given_up_when_its_listener_goes() -> None:
    wire, ours, given_up = Wire(), reply(resumable=False), list[bool]()
    ours.on_abandoned = lambda: given_up.append(True)
    ours.attach(listener(wire))
    ours.show(said(1))
    wire.on_gone()
    assert given_up == [True]


@pytest.mark.parametrize("held", [False, True])
def test_only_tokens_whose_text_is_shown_are_settled(held: bool) -> None:
    log = TokenLog(keeps_text=False)
    log.append([Emission(b"data: a\n\n", [1, 2])])
    log.append([Emission(b"data: b\n\n", [3], held)])
    assert log.settled == (2 if held else 3)
    log.append([Emission(b"data: c\n\n", [4])])
    assert log.settled == 4


def test_events_can_lose_their_numbers_and_nothing_else() -> None:
    log = TokenLog(keeps_text=True)
    events = [Emission(b"event: x\ndata: {}\n\n"), Emission(DONE)]
    log.append(events)
    assert unnumbered(log.since(0)) == b"".join(event.event for event in events)

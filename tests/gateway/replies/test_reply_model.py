"""A model of one reply: whatever comes and goes in whatever order, some things always hold."""

import asyncio
from collections.abc import Sequence
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.replies.test_reply import Wire, listener

from tidewheel.gateway.replies.reply import DONE, Ending, Reply
from tidewheel.gateway.replies.tokenlog import Emission

OPERATIONS: Final = (
    "event",
    "event",
    "event",
    "listen",
    "resume",
    "leave",
    "pause",
    "read on",
    "store accepts",
    "store accepts",
    "store is lost",
    "cancel",
    "finish",
    "fail",
    "time passes",
)


class FakeStore:
    """A journal that accepts when it is told to."""

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.accepted = 0
        self.is_lost = False
        self._waiting: list[int] = []
        self._ended = False

    def append(self, frames: Sequence[bytes], emissions: Sequence[Emission], *, count: int, urgent: bool) -> None:
        self._waiting.append(count)

    def end(self, ending: Ending) -> None:
        self._ended = True

    def accept(self) -> None:
        """Everything so far."""
        assert self.reply is not None
        if self.is_lost:
            return
        while self._waiting:
            self.accepted = self._waiting.pop(0)
            self.reply.acknowledged(self.accepted)
        if self._ended:
            self.reply.end_accepted()

    def lose(self) -> None:
        """It is away for good."""
        assert self.reply is not None
        self.is_lost = True
        self.reply.lose_journal(b"data: notice\n\n")


class World:
    """One reply, its store if it has one, and everybody who ever listened."""

    def __init__(self, *, resumable: bool, stored: bool) -> None:
        self.store = FakeStore() if stored and resumable else None
        self.reply = Reply("r", scope="s", stream=True, resumable=resumable, keeps_text=resumable, listener_timeout=0.0)
        if self.store is not None:
            self.store.reply = self.reply
            self.reply.keep_in(self.store)
        self.reply.on_abandoned = self._abandon
        self.abandoned = 0
        self.events = 0
        self.ends = 0
        self.wires: list[tuple[Wire, int]] = []
        self.listen(0)

    def _abandon(self) -> None:
        self.abandoned += 1

    def listen(self, after: int) -> None:
        """A connection that follows from here."""
        wire = Wire()
        self.wires.append((wire, after))
        self.reply.attach(listener(wire, after=after, max_lag=200, patient=not self.reply.resumable))

    async def do(self, operation: str) -> None:
        """One thing happens."""
        reply = self.reply
        open_wires = [wire for wire, _ in self.wires if not wire.finished]
        if operation == "event" and reply.ending is None:
            self.events += 1
            reply.show([Emission(b"data: %d\n\n" % self.events, [self.events])])
        elif operation in {"listen", "resume"} and reply.resumable:
            self.listen(0 if operation == "listen" else reply.shown)
        elif operation == "leave" and open_wires:
            open_wires[0].finished = True
            open_wires[0].on_gone()
        elif operation == "pause" and open_wires:
            open_wires[0].on_pause()
        elif operation == "read on" and open_wires:
            open_wires[0].on_resume()
        elif operation == "store accepts" and self.store is not None:
            self.store.accept()
        elif operation == "store is lost" and self.store is not None:
            self.store.lose()
        elif operation == "cancel":
            self.ends += reply.cancel(code="cancelled")
        elif operation == "finish" and reply.ending is None:
            reply.show([Emission(DONE)])
            self.ends += reply.finish()
        elif operation == "fail":
            self.ends += reply.fail(b"event: error\ndata: {}\n\n", code="broken")
        elif operation == "time passes":
            for _ in range(3):
                await asyncio.sleep(0)

    def check(self) -> None:
        """What always holds."""
        reply = self.reply
        assert reply.shown <= reply.log.count
        if self.store is not None and not self.store.is_lost:
            assert reply.shown <= self.store.accepted, "shown before it was logged"
        for wire, after in self.wires:
            numbers = [int(line[4:]) for line in wire.taken.split(b"\n") if line.startswith(b"id: ")]
            assert numbers == list(range(after + 1, after + 1 + len(numbers))), "a gap or a repeat"
            if reply.log.keeps_text and numbers:
                assert wire.taken == reply.log.since(after, numbers[-1])
            assert wire.taken.count(b"event: error") + wire.taken.count(DONE) <= 1, "two ends"
        assert self.ends <= 1
        assert len([wire for wire, _ in self.wires if not wire.finished]) >= len(reply.listeners)

    async def settle(self) -> None:
        """Everybody reads, the store answers, the reply ends: nobody is left waiting."""
        await self.do("finish")
        for wire, _ in self.wires:
            if not wire.finished:
                wire.on_resume()
        if self.store is not None:
            self.store.accept()
        self.check()
        assert self.reply.ending is not None
        assert all(wire.finished for wire, _ in self.wires)
        assert not self.reply.listeners


@given(st.lists(st.sampled_from(OPERATIONS), max_size=40), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_in_any_order_what_is_shown_is_logged_and_there_is_one_end(
    operations: list[str], resumable: bool, stored: bool
) -> None:
    async def run() -> None:
        world = World(resumable=resumable, stored=stored)
        for operation in operations:
            await world.do(operation)
            world.check()
        await world.settle()

    asyncio.run(run())

"""The token log of one reply: its events as they are shown, numbered from 1, and the token ids behind them.

A token's text may come late: half a character, or the beginning of what could become a stop string, is held back by
the engine. ``settled`` counts the leading token ids whose text is wholly in the log; only from there can another
replica carry on without a repeat or a gap.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Emission(NamedTuple):
    """One event on its way into the log: its bytes without a number, and the tokens it stands for."""

    event: bytes
    ids: Sequence[int] = ()
    held: bool = False


class TokenLog:
    """Append only. Without ``keeps_text`` it numbers events and keeps token ids, but cannot show an event again."""

    __slots__ = ("_ends", "_text", "count", "finished", "keeps_text", "opening", "prompt_ids", "settled", "token_ids")

    def __init__(self, *, keeps_text: bool) -> None:
        self.keeps_text = keeps_text
        self.count = 0
        self.token_ids = array("I")
        self.prompt_ids: array[int] | None = None
        self.settled = 0
        self.finished = False  # an event with a finish_reason is in the log
        self.opening: dict[str, Any] | None = None  # what every chunk has in common
        self._text = bytearray()
        self._ends = array("Q")

    def append(self, emissions: Iterable[Emission]) -> list[bytes]:
        """The events as they are shown, with their numbers."""
        frames = []
        for event, ids, held in emissions:
            self.count += 1
            frame = b"id: %d\n%b" % (self.count, event)
            frames.append(frame)
            if self.keeps_text:
                self._text += frame
                self._ends.append(len(self._text))
            if ids:
                self.token_ids.extend(ids)
            if not held:
                self.settled = len(self.token_ids)
        return frames

    def restore(self, frames: Iterable[tuple[bytes, Sequence[int], bool]]) -> None:
        """Events of another gateway's log, already numbered."""
        for frame, ids, held in frames:
            self.count += 1
            self._text += frame
            self._ends.append(len(self._text))
            self.token_ids.extend(ids)
            if not held:
                self.settled = len(self.token_ids)

    def since(self, number: int, upto: int | None = None) -> bytes:
        """The events after ``number``, byte for byte as they were first shown."""
        ends = self._ends
        begin = ends[number - 1] if number else 0
        end = (ends[upto - 1] if upto else 0) if upto is not None else len(self._text)
        return bytes(memoryview(self._text)[begin:end])

    def fitting(self, number: int, upto: int, *, max_bytes: int) -> int:
        """The last event after ``number`` so that no more than ``max_bytes`` are sent, one event at least."""
        limit = self._end(number) + max_bytes
        last = number + 1
        while last < upto and self._end(last + 1) <= limit:
            last += 1
        return min(last, upto)

    def bytes_since(self, number: int) -> int:
        """How far behind a reader is that has seen events up to ``number``."""
        return len(self._text) - (self._ends[number - 1] if number else 0)

    def drop_text(self) -> None:
        """From now on nothing can be shown again."""
        self.keeps_text = False
        self._text = bytearray()
        self._ends = array("Q")

    def _end(self, number: int) -> int:
        return self._ends[number - 1] if number > 0 else 0


def unnumbered(frames: bytes) -> bytes:
    """The same events without their numbers; the data of an event never begins a line with ``id:``."""
    lines = frames.split(b"\n")
    return b"\n".join(line for line in lines if not line.startswith(b"id: "))

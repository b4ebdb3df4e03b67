"""Server-sent events at byte level: where one ends, and what it says.

Reads cut events anywhere. Lines end in LF, CRLF or CR; a blank line ends an event; the bytes are kept as they came.
"""

import re
from itertools import pairwise
from typing import Final

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")  # atomic: CRLF is one line end
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLongError(Exception):
    """An event without end: more bytes than allowed."""


class EventSplitter:
    """Cuts a byte stream into whole events, exactly: what it returns, and the rest, are what it was fed.

    A CR that ends an event ends it at once, although its LF may still come; that LF then goes before the next event,
    where it means nothing. ``pending`` is what came after the last whole event.
    """

    __slots__ = ("_max_bytes", "pending")

    def __init__(self, max_bytes: int) -> None:
        self.pending = b""
        self._max_bytes = max_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now. Raises EventTooLongError."""
        if self.pending:
            data = self.pending + data
        elif data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2 and b"\r" not in data:
            return [data]  # one token at a time is the usual case
        if b"\r" in data:
            ends = [0, *(match.end() for match in _BLANK_LINE.finditer(data))]
            events = [data[start:end] for start, end in pairwise(ends)]
            self.pending = data[ends[-1] :]
        else:
            *whole, self.pending = data.split(b"\n\n")
            events = [part + b"\n\n" for part in whole]
        if len(self.pending) > self._max_bytes:
            raise EventTooLongError(f"an event is longer than {self._max_bytes} bytes")
        return events


def _lines(event: bytes) -> list[bytes]:
    """Without the LF of a CRLF whose CR ended the event before, and without the mark that a text may begin with."""
    return _LINE_END.split(event.removeprefix(b"\n").removeprefix(_BOM))


def event_data(event: bytes) -> bytes | None:
    """The data of an event, its lines joined by LF; None when it has none (a comment, a heartbeat)."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2]
    lines: list[bytes] = []
    for line in _lines(event):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None


def event_name(event: bytes) -> bytes:
    """The value of the event's last ``event`` field; empty when it has none."""
    found = b""
    for line in _lines(event):
        name, _, value = line.partition(b":")
        if name == b"event":
            found = value.removeprefix(b" ")
    return found

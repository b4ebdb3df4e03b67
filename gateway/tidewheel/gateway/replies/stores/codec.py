"""The form of a log in the store: a version mark, then blocks, each written in one piece.

A block is its length and its content, sealed if a key is given. The content is a row of entries: the reply's opening
(what its chunks have in common, the ids of its prompt), events with the tokens that they stand for, and marks of a
change of owner. A gateway of another version reads what it knows and refuses a mark that it does not.
"""

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tidewheel.gateway.replies.tokenlog import Emission

MARK: Final = b"TWL1"
_LENGTH: Final = struct.Struct("<I")
_EVENT: Final = struct.Struct("<BIHB")  # kind, bytes of the frame, number of ids, flags
_OPENING: Final = struct.Struct("<BI")
_KIND_EVENT, _KIND_OPENING, _KIND_OWNER = 1, 2, 3
_HELD, _FINISHED = 1, 2


class LogFormatError(Exception):
    """A log that this version cannot read."""


@dataclass(slots=True)
class Decoded:
    """What blocks say. ``events`` are (frame, ids, held)."""

    events: list[tuple[bytes, Sequence[int], bool]] = field(default_factory=list)
    opening: dict[str, Any] | None = None
    prompt_ids: "array[int] | None" = None
    finished: bool = False


def encode_event(frame: bytes, emission: Emission, *, finished: bool) -> bytes:
    """One event as it is shown, with its tokens."""
    ids = emission.ids
    flags = (_HELD if emission.held else 0) | (_FINISHED if finished else 0)
    head = _EVENT.pack(_KIND_EVENT, len(frame), len(ids), flags)
    return head + array("I", ids).tobytes() + frame if ids else head + frame


def encode_opening(opening: dict[str, Any], prompt_ids: Sequence[int] | None) -> bytes:
    """What another gateway needs to carry on."""
    body = orjson.dumps({"opening": opening, "prompt": list(prompt_ids) if prompt_ids is not None else None})
    return _OPENING.pack(_KIND_OPENING, len(body)) + body


def encode_owner() -> bytes:
    """From here on another gateway writes; the length of the log tells the one before."""
    return _OPENING.pack(_KIND_OWNER, 0)


def block(content: bytes, seal: Callable[[bytes], bytes]) -> bytes:
    """Ready to be appended."""
    sealed = seal(content)
    return _LENGTH.pack(len(sealed)) + sealed


def decode(data: bytes, unseal: Callable[[bytes], bytes]) -> tuple[Decoded, int]:
    """Whole blocks of a log (without its mark), and how many bytes they were. Raises LogFormatError."""
    decoded, position = Decoded(), 0
    while position + 4 <= len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        if position + 4 + length > len(data):
            break
        _decode_entries(unseal(data[position + 4 : position + 4 + length]), decoded)
        position += 4 + length
    return decoded, position


def _decode_entries(content: bytes, into: Decoded) -> None:
    position = 0
    for kind, size in _entries(content):
        if kind == _KIND_OPENING:
            body = orjson.loads(content[position + _OPENING.size : position + size])
            into.opening = body["opening"]
            into.prompt_ids = array("I", body["prompt"]) if body["prompt"] is not None else None
        elif kind == _KIND_EVENT:
            _, length, count, flags = _EVENT.unpack_from(content, position)
            ids = array("I")
            ids.frombytes(content[position + _EVENT.size : position + _EVENT.size + 4 * count])
            into.events.append((content[position + size - length : position + size], ids, bool(flags & _HELD)))
            into.finished = into.finished or bool(flags & _FINISHED)
        position += size


def _entries(content: bytes) -> Iterator[tuple[int, int]]:
    position = 0
    while position < len(content):
        kind = content[position]
        if kind == _KIND_EVENT:
            _, length, count, _ = _EVENT.unpack_from(content, position)
            size = _EVENT.size + 4 * count + length
        elif kind in {_KIND_OPENING, _KIND_OWNER}:
            size = _OPENING.size + _OPENING.unpack_from(content, position)[1]
        else:
            raise LogFormatError(f"an entry of kind {kind} in a reply's log is not known to this version")
        yield kind, size
        position += size

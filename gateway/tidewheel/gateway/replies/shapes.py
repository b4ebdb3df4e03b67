"""Recognises the ordinary chunk of a stream by its bytes.

Nearly every event of a reply is the one before with another text (and another token id). So the shape is learnt once,
from an event that was parsed: what comes before the text, and what comes after it. An event that begins and ends like
that, with nothing but the inside of a JSON string between, says the same as the first in every other field, because a
parser is in the same state after the same bytes. Whatever differs, or might, is parsed.
"""

import re
from typing import Any, Final, Self

import orjson

from tidewheel.gateway.replies.chunks import IDS, ids_of, text_choice, without_token_ids
from tidewheel.gateway.replies.tokenlog import Emission

_ESCAPE: Final = rb'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})'  # but for halves of pairs
_INSIDE: Final = re.compile(rb'[^"\\\x00-\x1f]*+(?:%b[^"\\\x00-\x1f]*+)*+' % _ESCAPE)
_LIKE_IDS: Final = b"token_ids"  # with the quote that follows it looks like the name of what is cut out
_OTHER_TEXT: Final = "other"
_OTHER_ID: Final = 987_654_321
_ZERO: Final = ord("0")
_LONGEST_ID: Final = 9  # digits: any such number is below 2**32


class Shape:
    """``joint`` is what lies between the text and the token id, where an engine tells ids; ``shown_tail`` then what a
    client that has not asked for them sees after the text."""

    __slots__ = ("_head", "_joint", "_shown_tail", "_tail")

    def __init__(self, head: bytes, joint: bytes, tail: bytes, shown_tail: bytes | None) -> None:
        self._head = head
        self._joint = joint
        self._tail = tail
        self._shown_tail = shown_tail

    @classmethod
    def of(cls, event: bytes, parsed: dict[str, Any], *, asked: bool) -> Self | None:
        """Of an event in plain form; None when it is no ordinary one, or is written in a way that is not understood."""
        choice = text_choice(parsed)
        if choice is None or choice.get("text_held"):
            return None
        (holder, name), ids = _text_of(choice), ids_of(choice)
        before, key, after = event.partition(b'"%b":"' % name.encode())
        text = holder[name].encode()
        head, rest = before + key, after[len(text) :]
        joint, tail = b"", rest
        if ids:
            joint, start, tail = rest.partition(b'"token_ids":[')
            joint, tail = joint + start, tail[len(str(ids[0])) :]
        shape = cls(head, joint, tail, None)
        if not after.startswith(text) or not shape._says_the_same(parsed):
            return None
        return shape if asked or shape._hides_ids(event, text) else None

    def _hides_ids(self, event: bytes, text: bytes) -> bool:
        """Whether what only the gateway asked for is all in one place, after the text, where it can be cut out."""
        shown = self._joint.removesuffix(IDS) + self._tail.removeprefix(b"]") if self._joint else self._tail
        if b'token_ids"' in self._head + shown or without_token_ids(event) != self._head + text + shown:
            return False
        if self._joint:
            self._shown_tail = shown
        return True

    def _says_the_same(self, parsed: dict[str, Any]) -> bool:
        """Whether the text and the id change with the bytes at their places, and nothing else does."""
        number = b"%d" % _OTHER_ID if self._joint else b""
        try:
            other = orjson.loads((self._head + _OTHER_TEXT.encode() + self._joint + number + self._tail)[6:])
        except orjson.JSONDecodeError:
            return False
        choice, known = text_choice(other), text_choice(parsed)
        if choice is None or known is None or list(ids_of(choice)) != ([_OTHER_ID] if self._joint else []):
            return False
        (holder, name), (known_holder, known_name) = _text_of(choice), _text_of(known)
        if holder[name] != _OTHER_TEXT:
            return False
        holder[name] = known_holder[known_name]
        if self._joint:
            choice["token_ids"] = known["token_ids"]
        return bool(other == parsed)

    def read(self, event: bytes) -> Emission | None:
        """What a client sees of an event of this shape, with its token; None for any other event."""
        if not (event.startswith(self._head) and event.endswith(self._tail)):
            return None
        begin, end = len(self._head), len(event) - len(self._tail)
        if not self._joint:
            return Emission(event) if _is_text(event, begin, end) else None
        found = event.find(self._joint, begin)
        number = event[found + len(self._joint) : end]
        if found < 0 or not number.isdigit() or len(number) > _LONGEST_ID or (len(number) > 1 and number[0] == _ZERO):
            return None
        if not _is_text(event, begin, found):
            return None
        shown = event if self._shown_tail is None else event[:found] + self._shown_tail
        return Emission(shown, (int(number),))


def _text_of(choice: dict[str, Any]) -> tuple[dict[str, Any], str]:
    delta = choice.get("delta")
    return (delta, "content") if isinstance(delta, dict) else (choice, "text")


def _is_text(event: bytes, begin: int, end: int) -> bool:
    """Whether a JSON string that is not empty may have this inside."""
    if begin >= end or _INSIDE.fullmatch(event, begin, end) is None or event.endswith(_LIKE_IDS, begin, end):
        return False
    if not event.isascii():
        try:
            event.decode()
        except UnicodeDecodeError:
            return False
    return True

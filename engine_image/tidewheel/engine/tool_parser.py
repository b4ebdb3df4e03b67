"""Tool calls out of a reply's text, as it comes: what is not a call is shown at once, arguments as they are written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto

from tidewheel.engine.tools import ToolFormat

_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A call's beginning, which has its name, or more of its arguments."""

    index: int
    name: str | None
    arguments: str


class _State(Enum):
    KEY = auto()  # before or in a key of the call's object
    COLON = auto()
    VALUE = auto()
    AFTER = auto()  # after a value
    DONE = auto()
    BROKEN = auto()  # not a call


class CallScanner:
    """One JSON object {"name": ..., "arguments": {...}}, character by character. It stops at the object's end."""

    def __init__(self, arguments_key: str) -> None:
        self._arguments_key = arguments_key
        self._state = _State.KEY
        self._is_begun = False
        self._token = ""
        self._depth = 0
        self._in_string = self._escaped = False
        self._key = ""
        self.name: str | None = None
        self.arguments = ""
        self.text = ""  # everything read, in case it is no call after all

    @property
    def is_done(self) -> bool:
        return self._state is _State.DONE

    @property
    def is_broken(self) -> bool:
        return self._state is _State.BROKEN

    def feed(self, text: str) -> str:
        """Read up to the end of the object; what is left."""
        for at, char in enumerate(text):
            if self._state in (_State.DONE, _State.BROKEN):
                return text[at:]
            self.text += char
            self._read(char)
        return ""

    def _read(self, char: str) -> None:
        match self._state:
            case _State.KEY:
                self._read_key(char)
            case _State.COLON:
                if char == ":":
                    self._state, self._token = _State.VALUE, ""
                elif char not in _SPACE:
                    self._state = _State.BROKEN
            case _State.VALUE:
                self._read_value(char)
            case _State.AFTER:
                self._read_after(char)

    def _read_key(self, char: str) -> None:
        if not self._is_begun:
            if char == "{":
                self._is_begun = True
            elif char not in _SPACE:
                self._state = _State.BROKEN
        elif not self._token:
            if char == '"':
                self._token = char
            elif char not in _SPACE:
                self._state = _State.BROKEN
        else:
            self._token += char
            if char == '"':
                self._key = self._token[1:-1]
                known = self._key in ("name", "type", self._arguments_key)
                self._state = _State.COLON if known else _State.BROKEN

    def _read_value(self, char: str) -> None:
        if not self._token and char in _SPACE:
            return
        if not (self._in_string or self._depth) and char in ",}" and self._token:
            # A bare word or number ends where the next thing begins.
            self._end_value()
            self._read_after(char)
            return
        self._token += char
        if self._key == self._arguments_key and self._token[0] != '"':
            self.arguments += char
        if self._in_string:
            self._read_in_string(char)
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._end_value()

    def _read_in_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            if self._depth == 0:
                self._end_value()

    def _read_after(self, char: str) -> None:
        if char == ",":
            self._state, self._token = _State.KEY, ""
        elif char == "}":
            self._state = _State.DONE if self.name is not None else _State.BROKEN
        elif char not in _SPACE:
            self._state = _State.BROKEN

    def _end_value(self) -> None:
        self._state = _State.AFTER
        if self._key == self._arguments_key and self._token[0] == '"':
            # Some models write the arguments as a string that holds JSON.
            self.arguments = self._string()
        elif self._key == "name":
            self.name = self._string() or None
            if self.name is None:
                self._state = _State.BROKEN

    def _string(self) -> str:
        try:
            value = json.loads(self._token)
        except ValueError:
            return ""
        return value if isinstance(value, str) else ""


class _Place(Enum):
    CONTENT = auto()
    CALL = auto()
    CLOSING = auto()  # behind a call's object
    BETWEEN = auto()  # behind a whole call: white space before another one is not content


class ToolParser:
    """Turns a choice's text into content and calls. Text that only looked like a call comes back as content."""

    def __init__(self, tool_format: ToolFormat) -> None:
        self._format = tool_format
        self._opening, self._closing = tool_format.opening.strip(), tool_format.closing.strip()
        # Where calls have no opening, a reply that begins with a brace is one.
        self._place = _Place.CONTENT if self._opening else _Place.BETWEEN
        self._held = ""
        self._scanner = CallScanner(tool_format.arguments_key)
        self._num_sent: int | None = None  # characters of the open call's arguments; None: its name is not known yet
        self.num_calls = 0

    def feed(self, text: str) -> tuple[str, list[CallPiece]]:
        self._held += text
        content: list[str] = []
        pieces: list[CallPiece] = []
        while self._advance(content, pieces):
            pass
        return "".join(content), pieces

    def finish(self) -> tuple[str, list[CallPiece]]:
        """The reply has ended: what was held back is content, unless it belongs to a call that was announced."""
        held, self._held = self._held, ""
        if self._place is _Place.CONTENT:
            return held, []
        if self._place is _Place.CALL and self._num_sent is None:
            return self._opening + self._scanner.text + held, []
        return "" if self.num_calls else held, []

    def _advance(self, content: list[str], pieces: list[CallPiece]) -> bool:
        """One step through what is held; False when more text is needed."""
        if not self._held:
            return False
        match self._place:
            case _Place.CONTENT:
                return self._read_content(content)
            case _Place.CALL:
                return self._read_call(content, pieces)
            case _Place.CLOSING:
                return self._read_closing()
            case _Place.BETWEEN:
                return self._read_between(content)

    def _read_content(self, content: list[str]) -> bool:
        if not self._opening:
            content.append(self._held)
            self._held = ""
            return False
        before, opening, after = self._held.partition(self._opening)
        if opening:
            content.append(before)
            self._begin_call(after)
            return True
        keep = next(n for n in range(len(self._opening) - 1, -1, -1) if self._held.endswith(self._opening[:n]))
        content.append(self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]
        return False

    def _begin_call(self, held: str) -> None:
        self._held, self._place, self._num_sent = held, _Place.CALL, None
        self._scanner = CallScanner(self._format.arguments_key)

    def _read_call(self, content: list[str], pieces: list[CallPiece]) -> bool:
        scanner = self._scanner
        self._held = scanner.feed(self._held)
        if scanner.name is not None and not (scanner.is_broken and self._num_sent is None):
            if self._num_sent is None:
                pieces.append(CallPiece(self.num_calls, scanner.name, scanner.arguments))
                self.num_calls += 1
            elif len(scanner.arguments) > self._num_sent:
                pieces.append(CallPiece(self.num_calls - 1, None, scanner.arguments[self._num_sent :]))
            self._num_sent = len(scanner.arguments)
        if scanner.is_broken and self._num_sent is None:
            content.append(self._opening + scanner.text)
            self._place = _Place.CONTENT
        elif scanner.is_broken or scanner.is_done:
            self._place = _Place.CLOSING if self._closing else _Place.BETWEEN
        return bool(self._held)

    def _read_closing(self) -> bool:
        text = self._held.lstrip(_SPACE)
        if self._closing.startswith(text) and text != self._closing:
            return False
        if text.startswith(self._closing):
            self._held = text.removeprefix(self._closing)
        self._place = _Place.BETWEEN
        return True

    def _read_between(self, content: list[str]) -> bool:
        text = self._held.lstrip(_SPACE)
        mark = self._opening or "{"
        if mark.startswith(text) and text != mark:
            return False
        if text.startswith(mark):
            self._begin_call(text.removeprefix(self._opening))
        elif not self._opening and self.num_calls and text[0] == ";":
            self._held = text[1:]
        else:
            self._place = _Place.CONTENT
        return True

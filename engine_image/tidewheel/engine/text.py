"""From token bytes to text that can be shown: whole characters only, nothing of a stop string, nothing late."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class StopMatcher:
    """Holds back only the longest tail that could still become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string was completed (then nothing more may follow)."""
        if not self._stops:
            return text, False
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            self._held = ""
            return text[:match], True
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    @property
    def holds_back(self) -> bool:
        return bool(self._held)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> int | None:
        """Start of the match that completes first; ties go to the stop named first."""
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or start + len(stop) < best[0]):
                best = (start + len(stop), start)
        return None if best is None else best[1]

    def _possible_start(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class TextStream:
    """Text of one reply, token by token."""

    def __init__(self, token_bytes: Callable[[int], bytes], *, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stops)
        self._min_tokens = min_tokens
        self._num_tokens = 0

    def feed(self, token_id: int) -> tuple[str, bool]:
        """Text to show now, and whether a stop string ended the reply. Incomplete characters wait."""
        self._num_tokens += 1
        text = self._decoder.decode(self._token_bytes(token_id))
        if self._num_tokens < self._min_tokens:
            return text, False
        return self._matcher.feed(text)

    @property
    def holds_back(self) -> bool:
        """Whether some text of the tokens so far is not out yet."""
        return bool(self._decoder.getstate()[0]) or self._matcher.holds_back

    def finish(self) -> str:
        """What was held back, when the reply ends for another reason than a stop string."""
        text, stopped = self._matcher.feed(self._decoder.decode(b"", final=True))
        return text if stopped else text + self._matcher.flush()

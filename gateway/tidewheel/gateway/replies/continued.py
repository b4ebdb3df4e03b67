"""A continuation's events in the form in which the reply began.

Whatever the reply is, it is continued on the completions route, because that one takes token ids. Its chunks are
written again under the reply's own id, model and creation time.
"""

from collections.abc import Iterator
from typing import Any, Literal

import orjson

Form = Literal["chat", "text"]


class Rewriter:
    """``prompt_tokens`` and ``shown_tokens`` are those of the reply, so that its usage speaks of the whole reply."""

    __slots__ = ("_asks_usage", "_form", "_head", "_opening", "_prompt_tokens", "_shown_tokens")

    def __init__(
        self, opening: dict[str, Any], *, form: Form, prompt_tokens: int, shown_tokens: int, asks_usage: bool
    ) -> None:
        self._opening = opening
        self._form = form
        self._head = orjson.dumps({**opening, "choices": []})[:-2]
        self._prompt_tokens = prompt_tokens
        self._shown_tokens = shown_tokens
        self._asks_usage = asks_usage

    def rewrite(self, parsed: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bytes]]:
        """The chunks, each parsed and as an event; none for a chunk that shows nothing."""
        if "error" in parsed:
            yield parsed, b"data: " + orjson.dumps(parsed) + b"\n\n"
            return
        for choice in parsed.get("choices") or ():
            yield from self._rewrite_choice(choice)
        usage = parsed.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            yield from self._rewrite_usage(usage["completion_tokens"])

    def _rewrite_choice(self, choice: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bytes]]:
        text, reason = choice.get("text") or "", choice.get("finish_reason")
        if self._form == "text":
            if text or reason:
                yield self._chunk({"index": 0, "text": text, "logprobs": None, "finish_reason": reason})
            return
        if text:
            yield self._chunk({"index": 0, "delta": {"content": text}, "finish_reason": None})
        if reason:
            yield self._chunk({"index": 0, "delta": {}, "finish_reason": reason})

    def _chunk(self, choice: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        parsed = {**self._opening, "choices": [choice]}
        return parsed, b"data: " + self._head + orjson.dumps(choice) + b"]}\n\n"

    def _rewrite_usage(self, completion_tokens: int) -> Iterator[tuple[dict[str, Any], bytes]]:
        parsed = {**self._opening, "choices": [], "usage": self.usage(completion_tokens)}
        if self._asks_usage:
            yield parsed, b"data: " + orjson.dumps(parsed) + b"\n\n"

    def usage(self, completion_tokens: int) -> dict[str, int]:
        """Of the whole reply, of which ``completion_tokens`` came from this continuation."""
        total = self._shown_tokens + completion_tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": total,
            "total_tokens": self._prompt_tokens + total,
        }

    def closing(self) -> list[bytes]:
        """The events that were missing when everything but the end had been shown already."""
        parsed = {**self._opening, "choices": [], "usage": self.usage(0)}
        ending = [b"data: " + orjson.dumps(parsed) + b"\n\n"] if self._asks_usage else []
        return [*ending, b"data: [DONE]\n\n"]

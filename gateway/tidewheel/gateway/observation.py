"""What a reply tells about itself while it passes: first token, pauses, tokens, whether it came to its end.

Token counts come from the reply's own ``usage``, which OpenAI's protocol sends with every whole reply, and at the end
of a stream when the request said ``stream_options: {"include_usage": true}``. A stream without it is counted by its
events that carry text, one token each with our engine; its prompt tokens stay unknown.
"""

from typing import Any, Final

import orjson

_DONE: Final = b"[DONE]"


class InvalidReplyError(Exception):
    """Bytes that are not what the protocol says; passing them on would crash clients."""


class ReplyObserver:
    """Fed with the data of each event; times are of the loop's clock, in seconds."""

    __slots__ = (
        "_stall_seconds",
        "cached_tokens",
        "completion_tokens",
        "done",
        "failed",
        "first_token_at",
        "last_token_at",
        "prompt_tokens",
        "shown_tokens",
        "stalls",
        "text_events",
    )

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self.first_token_at: float | None = None
        self.last_token_at = 0.0
        self.text_events = 0
        self.shown_tokens = 0  # by their ids, where the engine tells them
        self.stalls = 0
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens = 0
        self.done = False
        self.failed = False

    def observe_event(self, data: bytes, *, now: float) -> None:
        """One event of a stream. Raises InvalidReplyError."""
        self.observe(self.parse(data), now=now)

    @staticmethod
    def parse(data: bytes) -> dict[str, Any] | None:
        """The event's JSON object; None for the last event. Raises InvalidReplyError."""
        return None if data == _DONE else _parse(data)

    def observe(self, event: dict[str, Any] | None, *, now: float) -> None:
        """One parsed event; None is the last one."""
        if event is None:
            self.done = True
            return
        if event.get("error"):
            self.failed = True
        self._take_usage(event)
        if _carries_text(event):
            self.note_token(now)

    def observe_body(self, body: bytes) -> None:
        """A whole reply. Raises InvalidReplyError, also for an empty one."""
        self._take_usage(_parse(body))
        self.done = True

    def forgive_pause(self, now: float) -> None:
        """We did not read for a while, because the client did not: that pause is not the version's."""
        if self.first_token_at is not None:
            self.last_token_at = max(self.last_token_at, now)

    def finish(self, *, now: float) -> None:
        """The reply ended; a silence until here is a pause too, unless the reply was complete."""
        if not self.done and self.first_token_at is not None and now - self.last_token_at > self._stall_seconds:
            self.stalls += 1

    @property
    def output_tokens(self) -> int:
        """Tokens of the reply as far as it came."""
        return (self.shown_tokens or self.text_events) if self.completion_tokens is None else self.completion_tokens

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time per output token after the first; None below two tokens."""
        if self.first_token_at is None or self.output_tokens < 2 or self.text_events < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.output_tokens - 1)

    def note_token(self, now: float) -> None:
        """An event carries text."""
        self.text_events += 1
        if self.first_token_at is None:
            self.first_token_at = now
        elif now - self.last_token_at > self._stall_seconds:
            self.stalls += 1
        self.last_token_at = now

    def _take_usage(self, event: dict[str, Any]) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict):
            prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
            self.prompt_tokens = prompt if isinstance(prompt, int) else self.prompt_tokens
            self.completion_tokens = completion if isinstance(completion, int) else self.completion_tokens
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            self.cached_tokens = cached if isinstance(cached, int) else self.cached_tokens


def _parse(data: bytes) -> dict[str, Any]:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        event = None
    if not isinstance(event, dict):
        raise InvalidReplyError("the replica sent something that is not a JSON object")
    return event


def _carries_text(event: dict[str, Any]) -> bool:
    choices = event.get("choices")
    if not isinstance(choices, list):
        return False
    return any(isinstance(choice, dict) and _has_text(choice) for choice in choices)


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return bool(delta.get("content") or delta.get("tool_calls") or delta.get("reasoning_content"))
    return bool(choice.get("text"))

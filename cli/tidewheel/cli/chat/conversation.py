"""One conversation: what was said so far, and a reply that arrives in pieces."""

import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tidewheel.cli.chat.endpoint import Endpoint
from tidewheel.cli.errors import CliError

Message = dict[str, str]


@dataclass(slots=True)
class Reply:
    """What came, and when; read it while iterating over ``stream_reply``."""

    text: str = ""
    pieces: int = 0
    version: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    first_piece_seconds: float = 0.0
    seconds: float = 0.0

    def summary(self) -> str:
        """How it went, in a line."""
        tokens = int(self.usage.get("completion_tokens") or self.pieces)
        parts = [f"first token {self.first_piece_seconds * 1000:.0f} ms", f"{tokens} tokens"]
        if self.seconds > self.first_piece_seconds and tokens > 1:
            parts.append(f"{(tokens - 1) / (self.seconds - self.first_piece_seconds):.1f} tok/s")
        if self.finish_reason == "length":
            parts.append("cut at --max-tokens")
        if self.version:
            parts.append(self.version)
        return " · ".join(parts)


@dataclass(slots=True)
class Conversation:
    """All turns so far. Its id keeps every turn on the same version of the model."""

    endpoint: Endpoint
    model: str
    max_tokens: int
    temperature: float | None = None
    system: str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    messages: list[Message] = field(default_factory=list)

    def say(self, text: str, *, reply: Reply, clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
        """Yields the pieces of the reply. Whatever came is kept as a turn, also when the reader stops early."""
        self.messages.append({"role": "user", "content": text})
        try:
            yield from stream_reply(self.endpoint, self._body(), conversation_id=self.id, reply=reply, clock=clock)
        finally:
            if reply.text:
                self.messages.append({"role": "assistant", "content": reply.text})
            else:
                self.messages.pop()  # a turn without an answer would confuse the next one

    def _body(self) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [*system, *self.messages],
            "max_tokens": self.max_tokens,
        }
        if self.temperature is not None:
            body["temperature"] = self.temperature
        return body


def stream_reply(
    endpoint: Endpoint,
    body: dict[str, Any],
    *,
    conversation_id: str,
    reply: Reply,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[str]:
    """Yields text as it comes and fills in ``reply``; raises CliError when the stream breaks or reports an error."""
    started = clock()
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    headers = {"X-Conversation-Id": conversation_id, "Accept": "text/event-stream"}
    with endpoint.post("/v1/chat/completions", request, headers=headers) as response:
        reply.version = response.headers.get("X-Tidewheel-Version", "")
        for event in read_events(response):
            reply.usage = event.get("usage") or reply.usage
            for choice in event.get("choices", ())[:1]:
                reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
                if piece := (choice.get("delta") or {}).get("content"):
                    reply.pieces += 1
                    reply.text += piece
                    reply.seconds = clock() - started
                    reply.first_piece_seconds = reply.first_piece_seconds or reply.seconds
                    yield piece


def read_events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of an OpenAI stream up to ``[DONE]``; raises CliError for an error event or a stream that is cut."""
    try:
        for line in iter(response.readline, b""):
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if "error" in event:
                raise CliError(f"the reply ended: {event['error'].get('message', event['error'])}")
            yield event
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CliError(f"the reply was cut: {error}") from error
    raise CliError("the reply was cut before its end")

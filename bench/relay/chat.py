"""One streamed chat, timed event by event."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Chat:
    """What came of one request. Times in seconds since it was sent."""

    status: int = 0
    token_times: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    complete: bool = False

    @property
    def first_token(self) -> float:
        """Time to the first token."""
        return self.token_times[0]

    @property
    def seconds_per_token(self) -> float:
        """Mean time between tokens after the first."""
        return (self.token_times[-1] - self.token_times[0]) / max(1, len(self.token_times) - 1)

    @property
    def longest_pause(self) -> float:
        """Between two tokens."""
        pairs = zip(self.token_times, self.token_times[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)


async def chat(port: int, messages: list[dict[str, str]], *, key: str, max_tokens: int, **body: Any) -> Chat:
    """Ask, and read to the end."""
    whole = {"model": "chat", "messages": messages, "stream": True, "max_tokens": max_tokens, **body}
    data = json.dumps({**whole, "stream_options": {"include_usage": True}}).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: bench", "content-type: application/json"]
    lines += [f"authorization: Bearer {key}", f"content-length: {len(data)}"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    sent, seen = time.perf_counter(), Chat()
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head = await reader.readuntil(b"\r\n\r\n")
        seen.status = int(head.split(None, 2)[1])
        while seen.status == 200 and not seen.complete:
            line = await reader.readline()
            if not line:
                break
            if line.startswith(b"data: [DONE]"):
                seen.complete = True
            elif line.startswith(b"data: "):
                _take(seen, json.loads(line[6:]), time.perf_counter() - sent)
    finally:
        writer.transport.abort()
    return seen


def _take(seen: Chat, event: dict[str, Any], at: float) -> None:
    usage = event.get("usage")
    if usage:
        seen.prompt_tokens = usage["prompt_tokens"]
        seen.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    for choice in event.get("choices") or ():
        text = choice["delta"].get("content")
        if text:
            seen.token_times.append(at)
            seen.text += text

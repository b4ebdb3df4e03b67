"""What a client makes of a stream."""

import orjson
from tests.gateway.sse_events import event_payloads


def text_of(body: bytes) -> str:
    """The text of a chat or completions stream."""
    parts = []
    for data in event_payloads(body):
        if data != b"[DONE]":
            choices = orjson.loads(data).get("choices", ())
            parts += [choice.get("delta", {}).get("content") or choice.get("text") or "" for choice in choices]
    return "".join(parts)


def numbers_of(body: bytes) -> list[int]:
    """The ids of its events."""
    return [int(line[4:]) for line in body.split(b"\n") if line.startswith(b"id: ")]


def without_heartbeats(body: bytes) -> bytes:
    """The stream as it would be without silences."""
    return body.replace(b": ping\n", b"")

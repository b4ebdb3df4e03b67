"""A reply as one JSON object: how far it is, and its text."""

from typing import Any

import orjson

from tidewheel.gateway.replies.reply import Reply
from tidewheel.gateway.sse import EventSplitter, event_data


def snapshot(reply: Reply) -> dict[str, Any]:
    """What ``GET /v1/replies/ID`` tells. Text is what has been shown, whatever became of the rest."""
    ending = reply.ending
    body: dict[str, Any] = {
        "id": reply.id,
        "object": "reply",
        "status": "in_progress" if ending is None else ending.kind,
        "created": reply.created,
        "model": reply.model,
        "version": reply.version,
        "last_event": reply.shown,
        "resumable": reply.resumable,
        "events": f"/v1/replies/{reply.id}/events",
    }
    if reply.response is not None:
        body["response"] = reply.response
    if ending is not None and ending.code is not None:
        body["code"] = ending.code
    if ending is not None and ending.answer is not None:
        body["answer"] = orjson.Fragment(ending.answer.body)
    elif reply.log.keeps_text:
        body |= read_stream(reply.log.since(0, reply.shown))
    return body


def read_stream(frames: bytes) -> dict[str, Any]:
    """Text, finish reason, usage and error of a stream of chunks."""
    text: list[str] = []
    found: dict[str, Any] = {"text": "", "finish_reason": None}
    for event in EventSplitter(1 << 40).feed(frames):
        data = event_data(event)
        if data is None or data == b"[DONE]":
            continue
        chunk = orjson.loads(data)
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta")
            text.append((delta.get("content") if isinstance(delta, dict) else choice.get("text")) or "")
            found["finish_reason"] = choice.get("finish_reason") or found["finish_reason"]
        found |= {name: chunk[name] for name in ("usage", "error") if chunk.get(name)}
    found["text"] = "".join(text)
    return found

"""The events of a chat stream, told as Responses events. Pure.

Sequence numbers count from 0 and depend on nothing but the log, so that a client that saw event N on one gateway gets
the same N + 1 on any other. A cancelled response ends with OpenAI's ``error`` event: its API has no event for that.
"""

from typing import Any, Final, Literal

import orjson

from tidewheel.gateway.sse import EventSplitter, event_data

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
CANCEL_CODES: Final = frozenset({"cancelled", "no_listener", "erased", "client_gone"})
ACCEPTED: Final = "accepted"
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_CODES: Final = {"invalid_request_error": "invalid_prompt", "rate_limit_error": "rate_limit_exceeded"}
"""OpenAI's list of codes is closed; our own code is the error's ``reason``."""
_NO_LIMIT: Final = 1 << 40


class ResponseFold:
    """Feed it the log from its beginning. ``status`` and ``document`` are of what it has been fed."""

    def __init__(self, reply_id: str, *, created: int, echo: dict[str, Any]) -> None:
        self._id = reply_id
        self._created = created
        self._echo = echo
        self._splitter = EventSplitter(_NO_LIMIT)
        self._events: list[tuple[int, bytes]] = []
        self._count = 0
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._notices: list[dict[str, Any]] = []
        self._item_begun = False
        self.status: Status | None = None

    @property
    def count(self) -> int:
        """Events told so far; the next one has this number."""
        return self._count

    @property
    def has_ended(self) -> bool:
        """Whether the last event has been told."""
        return self.status not in (None, "queued", "in_progress")

    def feed(self, frames: bytes) -> list[tuple[int, bytes]]:
        """What these events of the log come to: each with its sequence number."""
        for event in self._splitter.feed(frames):
            data = event_data(event)
            if data is None or self.has_ended:
                continue
            if data == b"[DONE]":
                self._end()
            else:
                self._take(orjson.loads(data))
        events, self._events = self._events, []
        return events

    def close(self, error: dict[str, Any] | None = None) -> list[tuple[int, bytes]]:
        """The reply is over, whether its log said so or not; ``error`` is why, if it failed before its first event."""
        if not self.has_ended:
            self._error = self._error or error
            self._begin("in_progress")
            self._end()
        events, self._events = self._events, []
        return events

    def document(self) -> dict[str, Any]:
        """The response object."""
        status = self.status or "queued"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": self._told_error() if status == "failed" else None,
            "incomplete_details": {"reason": _INCOMPLETE.get(self._finish_reason or "")}
            if status == "incomplete"
            else None,
            "output": [self._item()] if self._item_begun else [],
            "usage": self._told_usage(),
            **self._echo,
            **({"tidewheel": {"notices": self._notices}} if self._notices else {}),
        }

    # Events of the log.

    def _take(self, chunk: dict[str, Any]) -> None:
        error = chunk.get("error")
        if isinstance(error, dict):
            self._error = error
            self._begin("in_progress")
            self._end()
            return
        said = chunk.get("tidewheel")
        if isinstance(said, dict) and not chunk.get("choices"):
            self._take_notice(said)
            return
        self._usage = chunk.get("usage") or self._usage
        self._begin("in_progress")
        for choice in chunk.get("choices") or ():
            self._take_choice(choice)

    def _take_notice(self, said: dict[str, Any]) -> None:
        if said.get("type") not in ("queued", ACCEPTED):
            self._notices.append(said)
            return
        first = self.status is None
        if first or said["type"] == "queued":
            self._begin("queued")
            place = {name: said[name] for name in ("position", "eta_ms", "eta_range_ms") if name in said}
            self._tell("response.queued", {"response": self.document(), **({"queue": place} if place else {})})

    def _take_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message")
        text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        if isinstance(text, str) and text:
            self._begin_item()
            self._text.append(text)
            self._tell("response.output_text.delta", {**self._place(), "delta": text, "logprobs": []})
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    # Events that are told.

    def _begin(self, status: Literal["queued", "in_progress"]) -> None:
        first, before = self.status is None, self.status
        self.status = status
        if first:
            self._tell("response.created", {"response": self.document()})
        if status == "in_progress" and before != "in_progress":
            self._tell("response.in_progress", {"response": self.document()})

    def _begin_item(self) -> None:
        if self._item_begun:
            return
        self._tell("response.output_item.added", {"output_index": 0, "item": {**self._item(), "content": []}})
        self._item_begun = True
        self._tell("response.content_part.added", {**self._place(), "part": self._part()})

    def _end(self) -> None:
        reason = self._finish_reason
        if self._error is not None:
            status: Status = "cancelled" if self._error.get("code") in CANCEL_CODES else "failed"
        else:
            self._begin_item()
            status = "incomplete" if reason in _INCOMPLETE else "completed"
        self.status = status
        if self._item_begun:
            text = "".join(self._text)
            self._tell("response.output_text.done", {**self._place(), "text": text, "logprobs": []})
            self._tell("response.content_part.done", {**self._place(), "part": self._part()})
            self._tell("response.output_item.done", {"output_index": 0, "item": self._item()})
        if status == "cancelled":
            assert self._error is not None
            why = {name: self._error.get(name) for name in ("code", "message", "param")}
            self._tell("error", {**why, "message": why["message"] or ""})
        else:
            self._tell(f"response.{status}", {"response": self.document()})

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        data = orjson.dumps({"type": kind, "sequence_number": self._count, **fields})
        event = b"id: %d\nevent: %b\ndata: %b\n\n" % (self._count, kind.encode(), data)
        self._events.append((self._count, event))
        self._count += 1

    # Parts of documents.

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    @property
    def _item_id(self) -> str:
        return "msg_" + self._id.removeprefix("resp_")

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": "".join(self._text), "annotations": [], "logprobs": []}

    def _item(self) -> dict[str, Any]:
        state = {"completed": "completed", "in_progress": "in_progress"}.get(self.status or "", "incomplete")
        return {"id": self._item_id, "type": "message", "status": state, "role": "assistant", "content": [self._part()]}

    def _told_error(self) -> dict[str, Any]:
        error = self._error or {}
        told = {
            "code": _CODES.get(str(error.get("type")), "server_error"),
            "message": error.get("message") or "The response failed.",
        }
        return {**told, "reason": error["code"]} if error.get("code") else told

    def _told_usage(self) -> dict[str, Any] | None:
        usage = self._usage
        if usage is None:
            return None
        prompt, output = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + output,
        }

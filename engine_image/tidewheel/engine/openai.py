"""The OpenAI wire shapes: chunks, whole replies, usage."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from tidewheel.engine.replies import Delta, Reply
from tidewheel.engine.request import Logprobs
from tidewheel.engine.tool_parser import CallPiece

DONE = b"data: [DONE]\n\n"


def sse(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.num_prompt_tokens,
        "completion_tokens": reply.num_output_tokens,
        "total_tokens": reply.num_prompt_tokens + reply.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.num_cached_tokens},
    }


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk of one reply has in common."""

    id: str
    created: int
    model: str
    fingerprint: str
    returns_token_ids: bool

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class Dialect(Protocol):
    """Chat or completions: how one delta and one finished choice are written."""

    def opening(self, reply: Reply) -> bytes: ...
    def chunk(self, delta: Delta) -> bytes: ...
    def usage_chunk(self, reply: Reply) -> bytes: ...
    def whole(self, reply: Reply, choices: list[Folded]) -> bytes: ...


@dataclass(slots=True)
class Folded:
    """One choice of a non-streamed reply, folded from the same deltas that a stream would send."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finish_reason: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        for piece in delta.calls:
            if piece.name is not None:
                self.calls.append(_call(piece))
            else:
                self.calls[piece.index]["function"]["arguments"] += piece.arguments
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs.extend(delta.logprobs)
        self.finish_reason = delta.finish_reason or self.finish_reason


def _call(piece: CallPiece) -> dict[str, Any]:
    """A call from its beginning; ids are ours, and only there to be sent back."""
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _call_delta(piece: CallPiece) -> dict[str, Any]:
    if piece.name is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    return {"index": piece.index, **_call(piece)}


class _Dialect:
    """Most chunks differ in the text alone, so the bytes around it are made once."""

    stream_kind: str
    whole_kind: str

    def __init__(self, envelope: Envelope, token_bytes: Callable[[int], bytes]) -> None:
        self._envelope = envelope
        self._token_bytes = token_bytes
        head = orjson.dumps({**envelope.head(self.stream_kind), "choices": []})
        self._head = b"data: " + head[: -len(b"]}")]

    def usage_chunk(self, reply: Reply) -> bytes:
        return sse({**self._envelope.head(self.stream_kind), "choices": [], "usage": usage(reply)})

    def chunk(self, delta: Delta) -> bytes:
        shows_ids = delta.token_ids and (self._envelope.returns_token_ids or delta.logprobs)
        if not (delta.text or delta.finish_reason or shows_ids or delta.calls):
            return b""
        return b"".join((self._head, self._choices(delta), b"]}\n\n"))

    def _tail(self, delta: Delta) -> bytes:
        reason = b'"' + delta.finish_reason.encode() + b'"' if delta.finish_reason else b"null"
        ids = b',"token_ids":' + orjson.dumps(delta.token_ids) if self._envelope.returns_token_ids else b""
        # Who carries on elsewhere from the ids so far must know that their text is not complete.
        held = b',"text_held":true' if ids and delta.is_text_held else b""
        return b',"finish_reason":' + reason + ids + held + b"}"

    def _choices(self, delta: Delta) -> bytes:
        raise NotImplementedError

    def _token(self, token_id: int) -> str:
        return self._token_bytes(token_id).decode("utf-8", "replace")


class ChatDialect(_Dialect):
    stream_kind = "chat.completion.chunk"
    whole_kind = "chat.completion"

    def opening(self, reply: Reply) -> bytes:
        choices = [
            {"index": c.index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            for c in reply.choices
        ]
        extra = {"prompt_token_ids": reply.choices[0].prompt} if self._envelope.returns_token_ids else {}
        return sse({**self._envelope.head(self.stream_kind), "choices": choices, **extra})

    def whole(self, reply: Reply, choices: list[Folded]) -> bytes:
        written = []
        for index, folded in enumerate(choices):
            message: dict[str, Any] = {"role": "assistant", "content": folded.text, "refusal": None}
            if folded.calls:
                message |= {"content": folded.text or None, "tool_calls": folded.calls}
            choice: dict[str, Any] = {
                "index": index,
                "message": message,
                "logprobs": self._logprobs(folded.token_ids, folded.logprobs),
                "finish_reason": folded.finish_reason,
            }
            if self._envelope.returns_token_ids:
                choice["token_ids"] = folded.token_ids
            written.append(choice)
        extra = {"prompt_token_ids": reply.choices[0].prompt} if self._envelope.returns_token_ids else {}
        return orjson.dumps(
            {**self._envelope.head(self.whole_kind), "choices": written, "usage": usage(reply), **extra}
        )

    def _choices(self, delta: Delta) -> bytes:
        index = b'{"index":%d,"delta":' % delta.choice
        if delta.finish_reason and not (delta.text or delta.logprobs or delta.calls):
            return index + b"{}" + self._tail(delta)
        logprobs = self._logprobs(delta.token_ids, delta.logprobs)
        if delta.calls:
            calls = [_call_delta(piece) for piece in delta.calls]
            said: dict[str, Any] = {"content": delta.text} if delta.text else {}
            content = index + orjson.dumps(said | {"tool_calls": calls})
        else:
            content = index + b'{"content":' + orjson.dumps(delta.text) + b"}"
        if logprobs is not None:
            content += b',"logprobs":' + orjson.dumps(logprobs)
        if delta.finish_reason is None:
            return content + self._tail(delta)
        # The last text and the end are two chunks: the final delta is empty, as with OpenAI.
        end = index + b"{}" + self._tail(delta._replace(token_ids=[]))
        return content + self._tail(delta._replace(finish_reason=None)) + b"]}\n\n" + self._head + end

    def _logprobs(self, token_ids: list[int], logprobs: Sequence[Logprobs]) -> dict[str, Any] | None:
        if not logprobs:
            return None
        content = [
            self._entry(token_id, found.own) | {"top_logprobs": [self._entry(*pair) for pair in found.top]}
            for token_id, found in zip(token_ids, logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {"token": self._token(token_id), "logprob": logprob, "bytes": list(self._token_bytes(token_id))}


class CompletionDialect(_Dialect):
    stream_kind = whole_kind = "text_completion"

    def __init__(self, envelope: Envelope, token_bytes: Callable[[int], bytes], *, echoes: bool = False) -> None:
        super().__init__(envelope, token_bytes)
        self._echoes = echoes
        self._announced: set[int] = set()
        self._prompts: list[list[int]] = []
        self._offsets: defaultdict[int, int] = defaultdict(int)

    def opening(self, reply: Reply) -> bytes:
        self._prompts = [choice.prompt for choice in reply.choices]
        if not self._echoes:
            return b""
        return b"".join(
            sse({**self._envelope.head(self.stream_kind), "choices": [self._echo(index)]})
            for index in range(len(self._prompts))
        )

    def _echo(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "text": self._prompt_text(self._prompts[index]),
            "logprobs": None,
            "finish_reason": None,
        }

    def _prompt_text(self, prompt: list[int]) -> str:
        return b"".join(map(self._token_bytes, prompt)).decode("utf-8", "replace")

    def whole(self, reply: Reply, choices: list[Folded]) -> bytes:
        written = []
        for index, folded in enumerate(choices):
            choice: dict[str, Any] = {
                "index": index,
                "text": (self._prompt_text(reply.choices[index].prompt) if self._echoes else "") + folded.text,
                "logprobs": self._logprobs(index, folded.token_ids, folded.logprobs),
                "finish_reason": folded.finish_reason,
            }
            if self._envelope.returns_token_ids:
                choice |= {"prompt_token_ids": reply.choices[index].prompt, "token_ids": folded.token_ids}
            written.append(choice)
        return orjson.dumps({**self._envelope.head(self.whole_kind), "choices": written, "usage": usage(reply)})

    def _choices(self, delta: Delta) -> bytes:
        logprobs = self._logprobs(delta.choice, delta.token_ids, delta.logprobs)
        head = b'{"index":%d,"text":' % delta.choice + orjson.dumps(delta.text)
        head += b',"logprobs":' + (b"null" if logprobs is None else orjson.dumps(logprobs))
        if self._envelope.returns_token_ids and delta.choice not in self._announced:
            self._announced.add(delta.choice)
            head += b',"prompt_token_ids":' + orjson.dumps(self._prompts[delta.choice])
        return head + self._tail(delta)

    def _logprobs(self, choice: int, token_ids: list[int], logprobs: Sequence[Logprobs]) -> dict[str, Any] | None:
        """Four arrays; offsets count characters of the text so far."""
        if not logprobs:
            return None
        tokens = [self._token(token_id) for token_id in token_ids]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[choice])
            self._offsets[choice] += len(token)
        top = [{self._token(token_id): value for token_id, value in found.top} for found in logprobs]
        own = [found.own for found in logprobs]
        return {"tokens": tokens, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets}

"""A synthetic engine that continues: its text is a pure function of the tokens so far, as with a real model."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import orjson
from tests.gateway.upstreams import DONE, Call

PROMPT_IDS = [11, 12, 13]


def word(number: int) -> str:
    """The text of the n-th token of a reply, which is also its id; some are no ASCII."""
    return f"w{number} " if number % 7 else f"ü{number} "


def whole_text(tokens: int) -> str:
    """The text of a reply that nobody disturbed."""
    return "".join(map(word, range(tokens)))


@dataclass
class TokenEngine:
    """Writes ``max_tokens`` words (8 if not said), one every ``pause`` seconds.

    ``break_after`` resets, ``stall_after`` goes silent after so many of its own tokens; ``hold`` marks every n-th
    token's text as held back until the next one.
    """

    pause: float = 0.001
    break_after: int | None = None
    stall_after: int | None = None
    hold: int = 0
    healthy: bool = True
    handles_health: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, call: Call) -> None:
        """Answer one request."""
        if call.line.startswith("GET /health"):
            if not self.healthy:
                await asyncio.Event().wait()
            call.reply(200, b'{"healthy": true, "seconds_without_progress": 0}')
            return
        body = orjson.loads(call.body)
        self.bodies.append(body)
        if body.get("stream"):
            await self._stream(call, body)
        else:
            count = body.get("max_tokens", 8)
            message = {"role": "assistant", "content": whole_text(count)}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            await asyncio.sleep(self.pause * count)
            usage = {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count}
            call.reply(200, orjson.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}))

    async def _stream(self, call: Call, body: dict[str, Any]) -> None:
        chat = call.line.startswith("POST /v1/chat/")
        first = 0 if chat else len(body["prompt"]) - len(PROMPT_IDS)
        count = body.get("max_tokens", 8)
        call.begin_stream()
        if chat:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            call.chunk(self._event(body, choices=[role], prompt_token_ids=PROMPT_IDS))
        held = ""
        for done, number in enumerate(range(first, first + count)):
            if done == self.break_after:
                call.hang_up()
                return
            if done == self.stall_after:
                self.healthy = False
                await asyncio.Event().wait()
            text, held = held + word(number), ""
            if self.hold and number % self.hold == self.hold - 1 and done + 1 < count:
                text, held = "", text
            choice = self._choice(chat, text, [number], is_held=bool(held))
            if not chat and not done:
                choice["prompt_token_ids"] = body["prompt"]
            call.chunk(self._event(body, choices=[choice]))
            await asyncio.sleep(self.pause)
        call.chunk(self._event(body, choices=[self._choice(chat, "", [], finish="length")]))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 3 + first, "completion_tokens": count, "total_tokens": 3 + first + count}
            call.chunk(self._event(body, choices=[], usage=usage))
        call.chunk(DONE)
        call.end_chunks()

    @staticmethod
    def _choice(
        chat: bool, text: str, ids: list[int], *, finish: str | None = None, is_held: bool = False
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": {"content": text} if not finish else {}} if chat else {"text": text}
        held = {"text_held": True} if is_held else {}
        return {"index": 0, **said, "finish_reason": finish, "token_ids": ids, **held}

    @staticmethod
    def _event(body: dict[str, Any], **fields: Any) -> bytes:
        if not body.get("return_token_ids"):
            fields.pop("prompt_token_ids", None)
            for choice in fields["choices"]:
                choice.pop("token_ids", None)
                choice.pop("prompt_token_ids", None)
        head = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        return b"data: " + orjson.dumps({**head, **fields}) + b"\n\n"

"""Streams through the gateway, and what became of each."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from tests.waiting import eventually


@dataclass(slots=True)
class Stream:
    """One reply. It is complete only with a finish reason and the closing [DONE]."""

    conversation: str
    began: float = field(default_factory=time.monotonic)
    version: str = ""
    text: str = ""
    pieces: int = 0
    finish_reason: str | None = None
    is_done: bool = False
    problem: str | None = None
    ended: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.problem is None and self.is_done and self.finish_reason is not None


async def stream(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    *,
    conversation: str,
    max_tokens: int | None = None,
    reply: Stream | None = None,
) -> Stream:
    """One streamed chat reply, read to its end; never raises. ``reply``: where it is noted while it comes."""
    reply = reply or Stream(conversation)
    body: dict[str, object] = {"model": model, "stream": True, "messages": [{"role": "user", "content": conversation}]}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    try:
        async with session.post(
            f"{url}/v1/chat/completions", json=body, headers={"X-Conversation-Id": conversation}
        ) as response:
            reply.version = response.headers.get("x-tidewheel-version", "")
            if response.status != 200:
                reply.problem = f"HTTP {response.status}: {(await response.text())[:300]}"
                return reply
            async for line in response.content:
                _take(reply, line)
    except (aiohttp.ClientError, TimeoutError) as error:
        reply.problem = f"{type(error).__name__}: {error}"
    finally:
        reply.ended = time.monotonic()
    return reply


def _take(reply: Stream, line: bytes) -> None:
    if not line.startswith(b"data:"):
        return
    data = line[5:].strip()
    if data == b"[DONE]":
        reply.is_done = True
        return
    event = json.loads(data)
    if "error" in event:
        reply.problem = f"error event: {event['error']}"
        return
    for choice in event["choices"]:
        text = choice["delta"].get("content")
        if text:
            reply.text += text
            reply.pieces += 1
        reply.finish_reason = choice["finish_reason"] or reply.finish_reason


@dataclass(slots=True)
class Load:
    """Conversations that come one after another on a few lines at once."""

    streams: list[Stream] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [
            reply.problem or f"{reply.conversation} just stopped" for reply in self.streams if not reply.is_complete
        ]

    @property
    def versions(self) -> Counter[str]:
        return Counter(reply.version for reply in self.streams)


@asynccontextmanager
async def steady_load(url: str, model: str, *, lines: int = 4, max_tokens: int | None = None) -> AsyncIterator[Load]:
    """Load for as long as the block lasts; replies that are open at its end are read to theirs."""
    load, ended, numbers = Load(), asyncio.Event(), itertools.count()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def line() -> None:
            while not ended.is_set():
                conversation = f"conversation-{next(numbers)}"
                load.streams.append(await stream(session, url, model, conversation=conversation, max_tokens=max_tokens))

        async with asyncio.TaskGroup() as group:
            for _ in range(lines):
                group.create_task(line())
            try:
                yield load
            finally:
                ended.set()


@dataclass(slots=True)
class LongReplies:
    """Replies that are begun when told, and read to their end by the end of `long_replies`."""

    streams: list[Stream]
    _begin: Callable[[Stream], None]

    async def begin(self, count: int) -> list[Stream]:
        """So many more, each of which has shown something."""
        started = [Stream(f"long-{len(self.streams) + number}") for number in range(count)]
        for reply in started:
            self._begin(reply)
        self.streams += started
        await eventually(
            lambda: all(reply.pieces or reply.ended for reply in started), within_seconds=60, what="they have begun"
        )
        return started


@asynccontextmanager
async def long_replies(url: str, model: str, *, max_tokens: int) -> AsyncIterator[LongReplies]:
    """Beside the load: the end of the block awaits their end."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
        asyncio.TaskGroup() as group,
    ):

        def begin(reply: Stream) -> None:
            group.create_task(
                stream(session, url, model, conversation=reply.conversation, max_tokens=max_tokens, reply=reply)
            )

        yield LongReplies([], begin)

"""An open loop of streamed requests, spread over gateways and conversations."""

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from bench.live.programs import MODEL


@dataclass(slots=True)
class Sent:
    """One request: when it was sent, which version answered, and whether that went wrong; one under way has not."""

    at: float
    version: str
    failed: bool = False


@dataclass(slots=True)
class Load:
    """``rate`` requests a second whatever the answers do: a slow version does not slow its users' arrival."""

    gateways: Mapping[str, int]
    rate: float
    tokens: int
    sent: list[Sent] = field(default_factory=list)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    async def run(self) -> None:
        """Until cancelled; what is open then is dropped."""
        chance, number = random.Random(1), 0
        urls = [f"http://127.0.0.1:{port}/v1/chat/completions" for port in self.gateways.values()]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            due = asyncio.get_running_loop().time()
            try:
                while True:
                    due += chance.expovariate(self.rate)
                    await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
                    number += 1
                    task = asyncio.create_task(self._one(session, urls[number % len(urls)], number))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _one(self, session: aiohttp.ClientSession, url: str, number: int) -> None:
        prompt = [{"role": "user", "content": f"Tell me about number {number}, please, and take your time."}]
        body = {"model": MODEL, "stream": True, "max_tokens": self.tokens, "messages": prompt}
        sent = Sent(time.time(), "")
        self.sent.append(sent)
        try:
            async with session.post(url, json=body, headers={"X-Conversation-Id": f"c{number}"}) as answer:
                sent.version = answer.headers.get("X-Tidewheel-Version", "")
                async for _ in answer.content.iter_any():
                    pass
                sent.failed = answer.status != 200
        except (aiohttp.ClientError, OSError):
            sent.failed = True

    def to(self, version: str) -> list[Sent]:
        """Requests that this version answered."""
        return [sent for sent in self.sent if sent.version == version]

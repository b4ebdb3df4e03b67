"""Requests at a steady rate on every gateway, and when the last one went to a version that should get no more."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

LINES = 8
"""Connections to each gateway."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request that was answered."""

    at: float
    model: str
    version: str


@dataclass(slots=True)
class Load:
    """A steady rate over all models: a machine at its limit measures itself."""

    urls: Sequence[str]
    models: Sequence[str]
    rate: float
    max_tokens: int = 1
    lines: int = LINES
    sent: list[Sent] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Until cancelled."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            lines = [(url, model) for model in self.models for url in self.urls for _ in range(self.lines)]
            for index, (url, model) in enumerate(lines):
                every = len(lines) / self.rate
                group.create_task(self._line(session, url, model, first=index / self.rate, every=every))

    async def _line(self, session: aiohttp.ClientSession, url: str, model: str, *, first: float, every: float) -> None:
        question = [{"role": "user", "content": "?"}]
        body = {"model": model, "messages": question, "max_tokens": self.max_tokens, "stream": self.max_tokens > 1}
        due = asyncio.get_running_loop().time() + first
        while True:
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            due = max(due + every, asyncio.get_running_loop().time())
            sent_at = time.time()
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                text = await response.text()
                if response.status != 200:
                    self.failures.append(text[:200])
                self.sent.append(Sent(sent_at, model, response.headers.get("X-Tidewheel-Version", "")))

    def last_to(self, model: str, version: str, *, since: float, until: float) -> float:
        """When the last request that ``version`` answered was sent; ``since`` if none was in that time."""
        asked = (sent.at for sent in self.sent if (sent.model, sent.version) == (model, version))
        return max((at for at in asked if since < at < until), default=since)

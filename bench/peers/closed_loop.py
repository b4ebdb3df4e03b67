"""A closed loop of streaming completions: so many at a time, the next one when one ends."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.relay.load import Client

SMOLLM2_TEXT = range(1000, 40_000)


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts of ``shared + own`` random tokens, the first ``shared`` the same in all; ``output`` tokens each."""

    name: str
    requests: int
    at_once: int
    own: int
    output: int
    shared: int = 0
    vocabulary: range = SMOLLM2_TEXT

    def prompts(self, *, seed: int) -> list[list[int]]:
        """The same for every engine that is asked with the same seed; no two loads have one in common.

        Once they all began with the same numbers, and the prefill of a prompt that the load before had left in the
        cache was measured.
        """
        draw = random.Random(f"{self.name} {seed}")
        common = draw.choices(self.vocabulary, k=self.shared)
        return [common + draw.choices(self.vocabulary, k=self.own) for _ in range(self.requests)]


@dataclass(slots=True)
class Result:
    """Times in seconds."""

    seconds: float = 0.0
    first_token: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)


def request_bytes(prompt: Sequence[int], output: int) -> bytes:
    """A greedy completion that ends at its length only."""
    body = {
        "model": "smollm2", "prompt": list(prompt), "max_tokens": output, "temperature": 0, "ignore_eos": True,
        "stream": True,
    }  # fmt: skip
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def run(load: Load, port: int, *, seed: int) -> Result:
    """Every request of the load. Raises ConnectionError if one is refused, ValueError if one is short of tokens."""
    waiting = [request_bytes(prompt, load.output) for prompt in load.prompts(seed=seed)]
    waiting.reverse()
    result = Result()

    async def lane() -> None:
        while waiting:
            request = waiting.pop()
            client = await Client.connect(port)
            began = time.perf_counter()
            try:
                await client.ask(request)
            finally:
                client.close()
            seconds = time.perf_counter() - began
            # Several tokens may share an event, and text that is not whole yet shares the next one's.
            if client.events < 1 + load.output // 4:
                raise ValueError(f"{load.name}: {client.events} events for {load.output} tokens")
            first = client.first_event_seconds[0]
            result.first_token.append(first)
            if load.output > 1:
                result.per_token.append((seconds - first) / (load.output - 1))

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(load.at_once)))
    result.seconds = time.perf_counter() - began
    return result

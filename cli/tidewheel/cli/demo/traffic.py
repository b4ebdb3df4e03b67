"""Requests of many conversations, and which version answered each."""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from tidewheel.cli.chat.conversation import Reply, stream_reply
from tidewheel.cli.chat.endpoint import Endpoint
from tidewheel.cli.errors import CliError

_PARALLEL: Final = 8
_QUESTION: Final = "Say yes."
_MAX_TOKENS: Final = 2


@dataclass(frozen=True, slots=True)
class Served:
    """One request: when it was sent (monotonic), who answered, or why nobody did."""

    sent_at: float
    version: str
    problem: str = ""


def ask(endpoint: Endpoint, model: str, *, clock: Callable[[], float] = time.monotonic) -> Served:
    """One short reply in a conversation of its own."""
    reply, sent_at = Reply(), clock()
    body = {"model": model, "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": _MAX_TOKENS}
    try:
        for _ in stream_reply(endpoint, body, conversation_id=uuid.uuid4().hex, reply=reply):
            pass
    except CliError as error:
        return Served(sent_at, reply.version, str(error))
    return Served(sent_at, reply.version)


def ask_many(endpoint: Endpoint, model: str, count: int, *, progress: Callable[[str], None]) -> list[Served]:
    """``count`` conversations, a few at a time."""
    served: list[Served] = []
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for result in pool.map(lambda _: ask(endpoint, model), range(count)):
            served.append(result)
            progress(f"{len(served)} of {count} answered")
    return served


def observed(served: Sequence[Served]) -> Counter[str]:
    """Answers per version."""
    return Counter(request.version for request in served if not request.problem)


def binomial_band(count: int, share: float, *, deviations: float = 3.29) -> tuple[int, int]:
    """Where 99.9 % of splits land by chance alone (normal approximation)."""
    spread = deviations * (count * share * (1 - share)) ** 0.5
    return max(0, round(count * share - spread)), min(count, round(count * share + spread))


@dataclass(slots=True)
class SteadyTraffic:
    """Keeps asking, a few conversations at a time, until the block ends."""

    endpoint: Endpoint
    model: str
    lines: int = _PARALLEL
    served: list[Served] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "SteadyTraffic":
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self.lines)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self.served.append(ask(self.endpoint, self.model))

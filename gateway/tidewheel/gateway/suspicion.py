"""The second signal: is a replica as a whole in trouble, or just one of its streams slow?

When a stream has been silent for a while its replica is probed on a connection of its own, once for all its streams.
No answer in time, a refused connection, or an engine that says itself that it makes no progress is the second signal;
so is a replica that answers probes, without a word about progress, while every one of its several streams is silent.
"""

import asyncio
import contextlib
from enum import Enum, auto

import orjson

from tidewheel.gateway.patience import patience
from tidewheel.gateway.settings import Settings


class Health(Enum):
    """What the last probe told."""

    UNKNOWN = auto()
    WELL = auto()  # it says that it makes progress
    ANSWERS = auto()  # no more than that
    ILL = auto()


class Suspicion:
    """Of one replica, from its first silent stream on."""

    __slots__ = ("_probe", "_probed_at", "_settings", "address", "health", "last_heard")

    def __init__(self, address: tuple[str, int], settings: Settings, *, now: float) -> None:
        self.address = address
        self._settings = settings
        self._probe: asyncio.Task[None] | None = None
        self._probed_at = -1e9
        self.health = Health.UNKNOWN
        self.last_heard = now - settings.suspect_seconds * settings.probe_share

    def heard(self, now: float) -> None:
        """Bytes came from it, on whatever stream."""
        self.last_heard = now
        self.health = Health.UNKNOWN

    def doubt(self, *, now: float, streams: int) -> bool:
        """Whether the second signal is there. Starts a probe when there is no fresh one."""
        settings = self._settings
        if self._probe is None and now - self._probed_at >= settings.probe_timeout:
            self._probed_at = now
            self._probe = asyncio.get_running_loop().create_task(self._run())
        if self.health is Health.ILL:
            return True
        all_silent = streams > 1 and now - self.last_heard >= settings.suspect_seconds
        return self.health is Health.ANSWERS and all_silent

    async def _run(self) -> None:
        asked_at = asyncio.get_running_loop().time()
        try:
            async with patience(self._settings.probe_timeout):
                health = await _ask(self.address, stuck_seconds=self._settings.suspect_seconds)
        except (OSError, EOFError, TimeoutError, ValueError, IndexError, asyncio.LimitOverrunError):
            health = Health.ILL
        finally:
            self._probe = None
        if self.last_heard <= asked_at:  # else it has spoken meanwhile, which counts more
            self.health = health


async def _ask(address: tuple[str, int], *, stuck_seconds: float) -> Health:
    """GET /health. An engine that does not have it is alive when it answers at all."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(b"GET /health HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head.split(b" ", 2)[1])
        length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        body = await reader.readexactly(int(length)) if length else b""
    finally:
        writer.transport.abort()
    document = None
    with contextlib.suppress(orjson.JSONDecodeError):
        document = orjson.loads(body)
    stuck = document.get("seconds_without_progress") if isinstance(document, dict) else None
    if status >= 500 or (isinstance(stuck, int | float) and stuck >= stuck_seconds):
        return Health.ILL
    return Health.ANSWERS if stuck is None else Health.WELL

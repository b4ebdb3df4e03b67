"""Routing from a file, for one machine without Kubernetes (``tidewheel serve``) and for tests."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import orjson

from tidewheel.gateway.filestamp import file_stamp
from tidewheel.gateway.snapshot import Snapshot, SnapshotError, parse_snapshot

_log = logging.getLogger(__name__)


class StaticRouting:
    """Publishes the file, and again whenever it is written or replaced; a bad version of it changes nothing."""

    regressions = 0
    age_seconds = 0.0

    def __init__(self, path: Path, publish: Callable[[Snapshot], None], *, poll_seconds: float) -> None:
        self._path = path
        self._publish = publish
        self._poll_seconds = poll_seconds
        self._stamp = file_stamp(self._path)
        self._first = self._read()  # raises now, while there is nobody to disappoint

    async def run(self) -> None:
        """Follow the file until cancelled."""
        self._publish(self._first)
        while True:
            await asyncio.sleep(self._poll_seconds)
            stamp = file_stamp(self._path)
            if stamp == self._stamp:
                continue
            self._stamp = stamp
            try:
                self._publish(self._read())
            except SnapshotError as error:
                _log.warning("the routing file was not taken over: %s", error)

    def _read(self) -> Snapshot:
        try:
            body = orjson.loads(self._path.read_bytes())
            return parse_snapshot(body, observed_at=datetime.now(UTC).isoformat(timespec="milliseconds"))
        except (OSError, orjson.JSONDecodeError, SnapshotError) as error:
            raise SnapshotError(f"{self._path}: {error}") from None

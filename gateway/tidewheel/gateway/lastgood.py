"""The last known good routing on disk, so that a gateway that starts while the API server is away can serve.

Two files: the newest, and the one before it for when the newest is damaged. A file is written whole beside its place,
flushed, and renamed into it; it carries a checksum, because a full disk or a torn page may still leave a half file.
"""

import asyncio
import hashlib
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from tidewheel.gateway.snapshot import Snapshot, SnapshotError, parse_snapshot

_log = logging.getLogger(__name__)

_FORMAT: Final = 1
_NEWEST: Final = "routing.json"
_BEFORE: Final = "routing.previous.json"


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot and when it was written."""

    snapshot: Snapshot
    saved_at: str


class LastGood:
    """The store in one folder. Writing happens in a thread, one at a time, the latest snapshot only."""

    def __init__(self, folder: Path, *, pause_seconds: float = 0.5) -> None:
        self._folder = folder
        self._pause_seconds = pause_seconds
        self._latest: Snapshot | None = None
        self._wanted = asyncio.Event()

    def load(self) -> Saved | None:
        """The newest file that is whole; None when there is none."""
        for name in (_NEWEST, _BEFORE):
            path = self._folder / name
            try:
                return _parse(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, SnapshotError) as error:
                _log.warning("%s cannot be used: %s", path, error)
        return None

    def keep(self, snapshot: Snapshot) -> None:
        """Write it soon."""
        self._latest = snapshot
        self._wanted.set()

    async def run(self) -> None:
        """Writes until cancelled; a disk that refuses costs a warning, never a request."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            assert self._latest is not None
            try:
                await asyncio.to_thread(self.save, self._latest)
            except OSError as error:
                _log.warning("the last known good routing was not written to %s: %s", self._folder, error)
            await asyncio.sleep(self._pause_seconds)

    def save(self, snapshot: Snapshot) -> None:
        """Write now. Raises OSError; the files that are there stay whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        newest, before = self._folder / _NEWEST, self._folder / _BEFORE
        temporary = self._folder / f".{_NEWEST}.{os.getpid()}"
        try:
            with temporary.open("wb") as file:
                file.write(_render(snapshot))
                file.flush()
                os.fsync(file.fileno())
            if newest.exists():
                newest.replace(before)
            temporary.replace(newest)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(self._folder)


def _render(snapshot: Snapshot) -> bytes:
    body = orjson.dumps({"savedAt": datetime.now(UTC).isoformat(timespec="milliseconds"), **snapshot.to_json()})
    checksum = hashlib.sha256(body).hexdigest()
    return orjson.dumps({"format": _FORMAT, "sha256": checksum}) + b"\n" + body + b"\n"


def _parse(data: bytes) -> Saved:
    first, _, body = data.partition(b"\n")
    try:
        header: Any = orjson.loads(first)
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise SnapshotError("it is of another format")
        body = body.removesuffix(b"\n")
        if hashlib.sha256(body).hexdigest() != header.get("sha256"):
            raise SnapshotError("its checksum does not match")
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise SnapshotError(f"it is not JSON: {error}") from None
    saved_at = str(parsed.pop("savedAt", ""))
    return Saved(parse_snapshot(parsed, observed_at=saved_at), saved_at)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

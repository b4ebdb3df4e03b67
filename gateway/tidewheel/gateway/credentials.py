"""The bearer token for engines, from a file that a Secret may change at any time."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_AGAIN_SECONDS = 5.0


class TokenFileError(Exception):
    """The token file cannot be used at start."""


class EngineToken:
    """Gives the Authorization header; the file is read again every few seconds, and a bad read keeps the old one."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        try:
            self._header = _read(path)
        except OSError as error:
            message = f"--engine-token-file {path}: {error.strerror}; mount the Secret or leave the flag out"
            raise TokenFileError(message) from None
        if self._header is None:
            raise TokenFileError(f"--engine-token-file {path} is empty")
        self._looked_at = clock()

    def __call__(self) -> bytes | None:
        """The header's value."""
        now = self._clock()
        if now - self._looked_at >= _LOOK_AGAIN_SECONDS:
            self._looked_at = now
            with contextlib.suppress(OSError):  # the kubelet replaces the file; the old token serves until it is there
                self._header = _read(self._path) or self._header
        return self._header


def _read(path: Path) -> bytes | None:
    token = path.read_bytes().strip()
    return b"Bearer " + token if token else None


def engine_authorization(path: Path | None) -> Callable[[], bytes | None]:
    """Where the Authorization header for engines comes from: a file, or nowhere. Raises TokenFileError."""
    return EngineToken(path) if path is not None else lambda: None

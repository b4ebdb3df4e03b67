"""The bearer token from a mounted Secret, which may be replaced while the engine runs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from tidewheel.engine.errors import StartError

logger = logging.getLogger(__name__)

_LOOK_EVERY = 1.0


class TokenFile:
    """The old token counts for `grace` seconds beside the new one: gateways see the change at other moments.

    A file that vanishes or is emptied changes nothing; a Secret that is being replaced may look like that.
    """

    def __init__(self, path: str, *, grace: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises StartError if there is no token yet."""
        self._path = path
        self._grace = grace
        self._clock = clock
        try:
            self._stamp, self._token = _read(path)
        except OSError as error:
            raise StartError(
                f"--api-token-file {path}: {error.strerror}; mount the Secret or leave the flag out."
            ) from error
        if not self._token:
            raise StartError(f"--api-token-file {path} is empty; put the token into it.")
        self._previous: str | None = None
        self._previous_until = 0.0
        self._next_look = clock() + _LOOK_EVERY

    def tokens(self) -> list[str]:
        """Those that are accepted now."""
        now = self._clock()
        if now >= self._next_look:
            self._next_look = now + _LOOK_EVERY
            self._look(now)
        if self._previous is not None and now < self._previous_until:
            return [self._token, self._previous]
        return [self._token]

    def _look(self, now: float) -> None:
        try:
            if _stamp(self._path) == self._stamp:
                return
            stamp, token = _read(self._path)
        except OSError as error:
            logger.warning("the token file cannot be read, the last token stays", extra={"reason": error.strerror})
            return
        if not token:
            return
        self._stamp = stamp
        if token != self._token:
            self._previous, self._previous_until = self._token, now + self._grace
            self._token = token
            logger.info("the bearer token has changed", extra={"grace_seconds": self._grace})


_Stamp = tuple[int, int, int]


def _stamp(path: str) -> _Stamp:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: str) -> tuple[_Stamp, str]:
    stamp = _stamp(path)
    with open(path, encoding="utf-8") as file:
        return stamp, file.read().strip()

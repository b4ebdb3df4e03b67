"""The key file on disk: read again when it changes, as the kubelet does when its Secret changes."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tidewheel.gateway.admission.keys import TIERS, KeyFileError, KeyRing, Principal, parse_keys
from tidewheel.gateway.filestamp import file_stamp

_log = logging.getLogger(__name__)

Identify = Callable[[bytes | None], Principal]
"""From an Authorization header to who asks. Raises GatewayError 401 or 403."""


class KeyFile:
    """Looks at the file every few seconds; a version of it that cannot be read changes nothing and is logged."""

    def __init__(
        self,
        path: Path,
        *,
        poll_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path = path
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._now = now
        self._stamp = file_stamp(self._path)
        try:
            self._ring: KeyRing = parse_keys(path.read_bytes())
        except OSError as error:
            message = f"--key-file {path}: {error.strerror}; mount the Secret or leave the flag out"
            raise KeyFileError(message) from None
        except KeyFileError as error:
            raise KeyFileError(f"--key-file {path}: {error}") from None
        self._looked_at = clock()

    def __call__(self, authorization: bytes | None) -> Principal:
        """Who asks."""
        if self._clock() - self._looked_at >= self._poll_seconds:
            self._looked_at = self._clock()
            self._follow()
        return self._ring.principal(authorization, now=self._now())

    def _follow(self) -> None:
        stamp = file_stamp(self._path)
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._ring = parse_keys(self._path.read_bytes())
        except (OSError, KeyFileError) as error:
            _log.warning("the key file was not taken over: %s", error)
        else:
            _log.info("the key file was read", extra={"keys": len(self._ring.keys)})


def identify_by(path: Path | None, *, poll_seconds: float, anonymous_tier: str) -> Identify:
    """By a key file; without one everybody is the same nameless user. Raises KeyFileError."""
    if path is not None:
        return KeyFile(path, poll_seconds=poll_seconds)
    if anonymous_tier not in TIERS:
        raise KeyFileError(f"--anonymous-tier '{anonymous_tier}' is none of {', '.join(TIERS)}")
    nobody = Principal("", anonymous_tier)
    return lambda authorization: nobody

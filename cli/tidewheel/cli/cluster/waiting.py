"""Wait for conditions, never for time."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tidewheel.cli.cluster.errors import ComponentError


def wait_until(
    condition: Callable[[], bool],
    *,
    what: str,
    timeout_seconds: float,
    poll_seconds: float = 0.05,
    failed: Callable[[], ComponentError | None] = lambda: None,
) -> None:
    """Poll until `condition` holds. `failed` ends the wait early, for example when the process has died."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if (error := failed()) is not None:
            raise error
        if time.monotonic() > deadline:
            raise ComponentError(f"{what} did not happen within {timeout_seconds:.0f} s")
        time.sleep(poll_seconds)


def answers_http(url: str, *, timeout_seconds: float = 2) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:
            return bool(answer.status == 200)
    except OSError:  # URLError and HTTPError are OSErrors
        return False


def listens(path: Path, *, timeout_seconds: float = 2) -> bool:
    """Whether a process takes connections on this Unix socket. A file alone may be a killed process's."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout_seconds)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True

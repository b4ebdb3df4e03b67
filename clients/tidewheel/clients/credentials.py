"""Bearer tokens that change while a program runs.

Projected service account tokens rotate hourly, and a client that keeps the first one dies with it (lightkube#141,
kubernetes-client/python#1768). So nobody holds a token: every request asks for it here.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from tidewheel.clients.errors import AccessError

EXEC_TIMEOUT_SECONDS = 60.0
EXPIRY_MARGIN_SECONDS = 30.0


class Credentials(Protocol):
    """Where the bearer token of the next request comes from."""

    async def token(self) -> str | None:
        """The token, or None where the client certificate is the identity."""

    def invalidate(self) -> None:
        """The server refused the last token: read it again."""


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token that never changes, or none."""

    value: str | None = None

    async def token(self) -> str | None:
        """The token."""
        return self.value

    def invalidate(self) -> None:
        """There is nothing to read again."""


@dataclass(slots=True)
class TokenFile:
    """A token in a file that somebody else rotates; read again after ``max_age_seconds`` and after a refusal."""

    path: Path
    max_age_seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic
    _value: str | None = field(default=None, repr=False)
    _read_at: float = 0.0

    async def token(self) -> str | None:
        """The token; an unreadable file keeps the last one, for a volume may be swapped at this moment."""
        now = self.clock()
        if self._value is None or now - self._read_at >= self.max_age_seconds:
            try:
                value = self.path.read_text().strip()
            except OSError as error:
                if self._value is None:
                    raise AccessError(f"token file {self.path} cannot be read: {error.strerror}") from error
                return self._value
            if value:
                self._value, self._read_at = value, now
            elif self._value is None:
                raise AccessError(f"token file {self.path} is empty")
        return self._value

    def invalidate(self) -> None:
        """Read the file before the next request."""
        self._read_at = self.clock() - self.max_age_seconds


@dataclass(slots=True)
class ExecPlugin:
    """A program that prints an ExecCredential, as cloud providers ship it; run again when the token expires."""

    command: Sequence[str]
    environment: Mapping[str, str]
    api_version: str
    wall_clock: Callable[[], float] = time.time
    _token: str | None = field(default=None, repr=False)
    _expires_at: float | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def token(self) -> str | None:
        """The token of the last run while it lives, else that of a new run."""
        async with self._lock:
            expired = self._expires_at is not None and self.wall_clock() >= self._expires_at - EXPIRY_MARGIN_SECONDS
            if self._token is None or expired:
                self._token, self._expires_at = _read_exec_credential(await self._run(), self.command[0])
            return self._token

    def invalidate(self) -> None:
        """Run the program before the next request."""
        self._token = None

    async def _run(self) -> bytes:
        request = {
            "apiVersion": self.api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        environment = {**os.environ, **self.environment, "KUBERNETES_EXEC_INFO": json.dumps(request)}
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise AccessError(f"credential plugin {self.command[0]} cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(EXEC_TIMEOUT_SECONDS):
                out, err = await process.communicate()
        except TimeoutError as error:
            raise AccessError(
                f"credential plugin {self.command[0]} gave no answer in {EXEC_TIMEOUT_SECONDS:.0f} s"
            ) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            words = err.decode("utf-8", "replace").strip()[-300:]
            raise AccessError(f"credential plugin {self.command[0]} failed with code {process.returncode}: {words}")
        return out


def _read_exec_credential(output: bytes, program: str) -> tuple[str, float | None]:
    try:
        status: dict[str, Any] = json.loads(output)["status"]
    except (ValueError, KeyError, TypeError) as error:
        raise AccessError(f"credential plugin {program} did not print an ExecCredential") from error
    token = status.get("token")
    if not token:
        raise AccessError(f"credential plugin {program} gave no token; one that gives certificates is not supported")
    expiry = status.get("expirationTimestamp")
    return str(token), datetime.fromisoformat(expiry).timestamp() if expiry else None

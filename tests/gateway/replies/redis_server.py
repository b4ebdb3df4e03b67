"""A real redis-server on a port of its own, and the ways in which it can fail."""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis
from tests.waiting import PATIENCE_SECONDS

MISSING = "redis-server is not installed; apt-get install redis-server, or set REDIS_SERVER to a valkey-server"


def program() -> str:
    """The server's program. Raises FileNotFoundError that says what to install."""
    found = os.environ.get("REDIS_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        raise FileNotFoundError(MISSING)
    return found


class RedisServer:
    """Empty at every start: nothing is written to disk."""

    def __init__(self, folder: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """For gateways."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self, *arguments: str) -> None:
        """Returns when it answers."""
        self._process = await asyncio.create_subprocess_exec(
            *(program(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder),
            *("--save", "", "--appendonly", "no", *arguments),
            stdout=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    await self.call("PING")
                except Exception:
                    await asyncio.sleep(0.02)
                else:
                    return

    async def call(self, *command: str | int) -> object:
        """One command, by another client than the gateway's."""
        client = Redis(port=self.port)
        try:
            return await client.execute_command(*command)
        finally:
            await client.aclose()

    def send(self, number: signal.Signals) -> None:
        """To the process."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """At once; everything in it is lost."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def running_redis() -> AsyncIterator[RedisServer]:
    """For the length of the block."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(folder)
        await server.start()
        try:
            yield server
        finally:
            server.send(signal.SIGCONT)
            await server.kill()

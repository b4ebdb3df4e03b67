"""A redis-server for the length of a block."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidewheel.cli.cluster.addresses import free_ports


@asynccontextmanager
async def redis_server() -> AsyncIterator[str]:
    """Its address. Raises FileNotFoundError where neither redis-server nor valkey-server is installed."""
    program = os.environ.get("REDIS_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise FileNotFoundError("redis-server is not installed: apt-get install redis-server")
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder),
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            await _until_open(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            await process.wait()


async def _until_open(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return

"""The programs under measurement, and what they cost."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tidewheel.cli.cluster.addresses import free_ports


@asynccontextmanager
async def synthetic_engine() -> AsyncIterator[int]:
    """Its port."""
    async with _that_prints_its_port("bench.relay.synthetic_engine") as port:
        yield port


@asynccontextmanager
async def token_engine(*, rate: float) -> AsyncIterator[int]:
    """The synthetic engine that can carry on with a reply; ``rate`` words a second of each stream. Its port."""
    async with _that_prints_its_port("bench.relay.token_engine", "--rate", str(rate)) as port:
        yield port


@asynccontextmanager
async def _that_prints_its_port(module: str, *arguments: str) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def simulated_engine() -> AsyncIterator[int]:
    """The real engine program with the simulated runner and steps of 5 ms; its port."""
    [port] = free_ports(1)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidewheel.engine", "--model", "smollm2", "--runner", "simulated"),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "chat"),
        *("--step-time", "5,0,0", "--accept-after-sigterm", "0", "--log-level", "error"),
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        await until_ok(f"http://127.0.0.1:{port}/ready")
        yield port
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def gateway(
    engine_port: int, *arguments: str, tiers: dict[str, Any] | None = None
) -> AsyncIterator[tuple[int, int]]:
    """A gateway process in front of one engine: its data port and its process id."""
    with tempfile.TemporaryDirectory() as folder:
        routing = Path(folder) / "routing.json"
        routing.write_text(json.dumps(_routing(engine_port, tiers)))
        port, admin_port = free_ports(2)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidewheel.gateway", "--static", str(routing), "--host", "127.0.0.1"),
            *("--port", str(port), "--admin-port", str(admin_port), "--accept-after-sigterm", "0", *arguments),
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await until_ok(f"http://127.0.0.1:{port}/readyz")
            yield port, process.pid
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _routing(engine_port: int, tiers: dict[str, Any] | None) -> dict[str, object]:
    cause = {"actor": "bench", "reason": "Bench", "at": "2026-01-01T00:00:00Z"}
    spec: dict[str, object] = {
        "model": "chat",
        "cause": cause,
        "targets": [{"version": "v1", "weight": 10_000, "digest": "bench"}],
    }
    spec |= {"tiers": tiers} if tiers else {}
    tables = [{"metadata": {"name": "chat", "namespace": "default"}, "spec": spec}]
    return {"tables": tables, "endpoints": {"default/chat-v1": [f"127.0.0.1:{engine_port}"]}}


async def until_ok(url: str) -> None:
    """Wait for a 200."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(240):  # a busy machine starts programs slowly
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


def cpu_seconds(process: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(process: int) -> int:
    """Memory of a process now."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

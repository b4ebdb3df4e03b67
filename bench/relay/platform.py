"""Several simulated engines and one gateway with keys, as programs of their own."""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bench.relay.processes import until_ok

from tidewheel.cli.cluster.addresses import free_ports

TIERS = ("paid", "free", "background")


@dataclass(frozen=True)
class Engine:
    """What one simulated engine can do. ``step_time`` is base, per prefill token, per sequence, in milliseconds."""

    step_time: str
    max_num_seqs: int
    kv_memory: str = "512Mi"
    reply_tokens: int = 64


def key_of(user: str, tier: str) -> str:
    """The API key of a user."""
    return f"sk-tw-bench-{tier}-{user}"


class Engines:
    """Simulated engines that run, and gateways in front of them."""

    def __init__(self, engines: Sequence[Engine], folder: Path) -> None:
        self._engines = engines
        self._folder = folder
        self._ports = free_ports(len(engines))
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        """Returns when all are ready."""
        self._processes = [await self._start_one(number) for number in range(len(self._engines))]
        await asyncio.gather(*[until_ok(f"http://127.0.0.1:{port}/ready") for port in self._ports])

    async def stop(self) -> None:
        """All of them."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def pid(self, number: int) -> int:
        """Of the program that is the replica of this number now."""
        return self._processes[number].pid

    async def replace(self, number: int) -> None:
        """Another program at the same address; returns when it is ready."""
        old = self._processes[number]
        if old.returncode is None:
            old.kill()
        await old.wait()
        self._processes[number] = await self._start_one(number)
        await until_ok(f"http://127.0.0.1:{self._ports[number]}/ready")

    async def _start_one(self, number: int) -> asyncio.subprocess.Process:
        return await _start("tidewheel.engine", *_engine_arguments(self._engines[number], self._ports[number]))

    @asynccontextmanager
    async def gateway(self, *arguments: str, tiers: dict[str, object] | None = None) -> AsyncIterator[int]:
        """Its data port. Nobody needs a key unless the arguments say so."""
        port, admin_port = free_ports(2)
        routing = self._folder / f"routing-{port}.json"
        routing.write_text(json.dumps(_routing(self._ports, tiers)))
        process = await _start(
            "tidewheel.gateway",
            *("--static", str(routing), "--host", "127.0.0.1", "--port", str(port)),
            *("--admin-port", str(admin_port), "--accept-after-sigterm", "0", "--no-access-log", *arguments),
        )
        try:
            await until_ok(f"http://127.0.0.1:{port}/readyz")
            await asyncio.sleep(1.0)  # the first load reports
            yield port
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def running_engines(engines: Sequence[Engine]) -> AsyncIterator[Engines]:
    """For the length of the block."""
    with tempfile.TemporaryDirectory() as folder:
        running = Engines(engines, Path(folder))
        try:
            await running.start()
            yield running
        finally:
            await running.stop()


@asynccontextmanager
async def platform(
    engines: Sequence[Engine], *arguments: str, users: int = 8, tiers: dict[str, object] | None = None
) -> AsyncIterator[int]:
    """The gateway's data port. Keys are those of ``users`` users of each tier."""
    async with running_engines(engines) as running:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as keys:
            json.dump({"keys": list(_keys(users))}, keys)
            keys.flush()
            async with running.gateway("--key-file", keys.name, *arguments, tiers=tiers) as port:
                yield port


async def _start(module: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )


def _engine_arguments(engine: Engine, port: int) -> list[str]:
    return [
        *("--model", "smollm2", "--runner", "simulated", "--host", "127.0.0.1", "--port", str(port)),
        *("--served-model-name", "chat", "--step-time", engine.step_time, "--kv-memory", engine.kv_memory),
        *("--max-num-seqs", str(engine.max_num_seqs), "--reply-tokens", str(engine.reply_tokens)),
        *("--accept-after-sigterm", "0", "--log-level", "error"),
    ]


def _keys(users: int) -> list[dict[str, str]]:
    return [
        {
            "id": f"{tier}-{number}",
            "user": f"{tier}-{number}",
            "tier": tier,
            "sha256": sha256(key_of(f"u{number}", tier).encode()).hexdigest(),
        }
        for tier in TIERS
        for number in range(users)
    ]


def _routing(ports: Sequence[int], tiers: dict[str, object] | None) -> dict[str, object]:
    cause = {"actor": "bench", "reason": "Bench", "at": "2026-01-01T00:00:00Z"}
    target = {"version": "v1", "weight": 10_000, "digest": "bench", "maxModelLen": 8192}
    spec = {"model": "chat", "cause": cause, "targets": [target], **({"tiers": tiers} if tiers else {})}
    tables = [{"metadata": {"name": "chat", "namespace": "default"}, "spec": spec}]
    return {"tables": tables, "endpoints": {"default/chat-v1": [f"127.0.0.1:{port}" for port in ports]}}

"""The engines under comparison as processes: how each is started, when it is ready, what memory it takes."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from bench.relay.processes import cpu_seconds, resident_bytes

from tidewheel.cli.cluster.addresses import free_ports

HERE = Path(__file__).parent
START_LIMIT_SECONDS = 900.0  # vLLM's first start compiles


@dataclass(frozen=True, slots=True)
class Engine:
    """A program that serves SmolLM2-135M in bf16; ``{port}`` stands for the port in its command."""

    name: str
    command: tuple[str, ...]
    health: str
    needs: tuple[Path, ...] = ()

    @property
    def missing(self) -> list[Path]:
        """What would have to be installed first."""
        return [path for path in self.needs if not path.exists()]


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    port: int
    process_id: int
    seconds_to_ready: float

    def resident_bytes(self) -> int:
        """Memory of the process and its children now."""
        return sum(map(resident_bytes, _family(self.process_id)))

    def cpu_seconds(self) -> float:
        """CPU time of the process and its children so far, waiting threads that spin included."""
        return sum(map(cpu_seconds, _family(self.process_id)))


def tidewheel(*arguments: str) -> Engine:
    """Ours, as `make` installs it."""
    program = (sys.executable, "-m", "tidewheel.engine", "--model", "smollm2", "--served-model-name", "smollm2")
    options = ("--port", "{port}", "--kv-memory", "2Gi", "--max-model-len", "2048", "--log-level", "error")
    return Engine("tidewheel", (*program, *options, "--accept-after-sigterm", "0", *arguments), "/ready")


def peers(folder: Path) -> list[Engine]:
    """vLLM and llama-server, each with the settings that were found to be its best on two cores."""
    vllm, llama = HERE / "run_vllm_cpu.sh", HERE / "run_llama_server.sh"
    weights, gguf = folder / "smollm2", folder / "smollm2-bf16.gguf"
    compiled, wheel = folder / "build-llama/bin/llama-server", folder / "v-llama/bin/python"
    return [
        Engine("vllm-cpu", (str(vllm), str(weights), "{port}"), "/health", (folder / "v-vllm/bin/python", weights)),
        Engine(
            "llama-server",
            (str(llama), str(gguf), "{port}"),
            "/health",
            (wheel if wheel.exists() and not compiled.exists() else compiled, gguf),
        ),
    ]


@asynccontextmanager
async def started(
    engine: Engine, *, folder: Path, log: Path | None = None, poll_seconds: float = 0.1
) -> AsyncIterator[Running]:
    """The engine, ready. Raises RuntimeError if it ends or takes longer than START_LIMIT_SECONDS."""
    [port] = free_ports(1)
    # A shell may forbid Python to keep bytecode, which no server does: every start would compile torch and vLLM anew.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    output = asyncio.subprocess.DEVNULL if log is None else log.open("wb")
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(part.format(port=port) for part in engine.command),
        env={**environment, "PEER": str(folder)},
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        await _until_ready(engine, port, process, poll_seconds)
        yield Running(port, process.pid, time.monotonic() - began)
    finally:
        await _end(process)


async def _until_ready(engine: Engine, port: int, process: asyncio.subprocess.Process, poll_seconds: float) -> None:
    deadline = time.monotonic() + START_LIMIT_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            if process.returncode is not None:
                raise RuntimeError(f"{engine.name} ended with code {process.returncode} before it was ready")
            try:
                async with session.get(f"http://127.0.0.1:{port}{engine.health}") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(poll_seconds)
    raise RuntimeError(f"{engine.name} was not ready after {START_LIMIT_SECONDS:.0f} s")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Its children too, which may be what holds the memory."""
    for signal in (15, 9):
        try:
            os.killpg(process.pid, signal)
        except ProcessLookupError:
            break
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            continue
    await process.wait()


def _family(process_id: int) -> list[int]:
    members = [process_id]
    for member in members:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            members += map(int, children.read_text().split())
    return members

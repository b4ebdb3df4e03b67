"""The real program, as a child process or inside the test's own, and what tests read from it."""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import PATIENCE_SECONDS

from tidewheel.clients.logs import JsonFormatter
from tidewheel.gateway.program import Program
from tidewheel.gateway.settings import Settings


@dataclass
class Gateway:
    """A gateway that runs: its ports, and what it logged."""

    data_port: int = 0
    admin_port: int = 0
    logs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Of the data port."""
        return f"http://127.0.0.1:{self.data_port}"

    @property
    def admin_url(self) -> str:
        """Of the admin port."""
        return f"http://127.0.0.1:{self.admin_port}"

    async def wait_for_log(
        self, message: str, *, seconds: float = PATIENCE_SECONDS, **fields: object
    ) -> dict[str, Any]:
        """The first log line with this in its message and these fields."""
        async with asyncio.timeout(seconds):
            while True:
                for entry in self.logs:
                    if message in entry["msg"] and all(entry.get(name) == value for name, value in fields.items()):
                        return entry
                await asyncio.sleep(0.01)

    async def get(self, path: str, *, admin: bool = False) -> tuple[int, Any]:
        """Status and body, parsed if it is JSON."""
        async with (
            aiohttp.ClientSession() as session,
            session.get((self.admin_url if admin else self.url) + path) as answer,
        ):
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """All series now."""
        _, text = await self.get("/metrics", admin=True)
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def value(self, name: str, **labels: str) -> float | None:
        """Sum of the series with this name and at least these labels; None when there is none."""
        wanted = set(labels.items())
        found = [
            value for (known, items), value in (await self.samples()).items() if known == name and wanted <= set(items)
        ]
        return sum(found) if found else None

    async def until(self, name: str, expected: float, *, seconds: float = PATIENCE_SECONDS, **labels: str) -> None:
        """Wait until a sum of series has this value."""
        async with asyncio.timeout(seconds):
            while await self.value(name, **labels) != expected:
                await asyncio.sleep(0.02)

    async def until_ready(self, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for /readyz."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    if (await self.get("/readyz"))[0] == 200:
                        return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.02)


@dataclass
class GatewayProcess(Gateway):
    """``python -m tidewheel.gateway`` as a child."""

    process: asyncio.subprocess.Process = field(kw_only=True)
    _reader: asyncio.Task[None] | None = None

    async def read_logs(self) -> None:
        """Collect what the program writes."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.logs.append(json.loads(line) if line.startswith(b"{") else {"msg": line.decode()})

    async def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Signal it and wait for its end."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                code = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            raise
        if self._reader is not None:
            await self._reader
        return code


async def start_process(*arguments: str, ready: bool = True) -> GatewayProcess:
    """Start it on free ports; ``ready`` waits until it can serve."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidewheel.gateway", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0"),
        *("--load-poll-seconds", "0"),
        *arguments,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    gateway = GatewayProcess(process=process)
    gateway._reader = asyncio.create_task(gateway.read_logs())
    try:
        listening = await gateway.wait_for_log("listening")
        gateway.data_port, gateway.admin_port = listening["data_port"], listening["admin_port"]
        if ready:
            await gateway.until_ready()
    except BaseException:
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise
    return gateway


async def run_program(*arguments: str) -> tuple[int, str]:
    """Run it to its end: exit code and what it wrote."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidewheel.gateway", "--port", "0", "--admin-port", "0", *arguments),
        stderr=asyncio.subprocess.PIPE,
    )
    _, output = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert process.returncode is not None
    return process.returncode, output.decode()


class _Collect(logging.Handler):
    """Log lines as the program would write them."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(json.loads(self.format(record)))


@asynccontextmanager
async def running_inside(*arguments: str, ready: bool = True) -> AsyncIterator[Gateway]:
    """The same program in this process and on this event loop, which costs a test a second less."""
    gateway, logger = Gateway(), logging.getLogger("tidewheel")
    handler, level = _Collect(gateway.logs), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    stopped: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    try:
        ports = (
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--admin-port",
            "0",
            "--drain-timeout",
            "1",
            "--replica-wait",
            "0",
            "--load-poll-seconds",  # tests count what engines are asked
            "0",
        )
        program = Program(Settings.from_arguments([*ports, *arguments]))
        listening = await program.start()
        gateway.data_port, gateway.admin_port = listening["data_port"], listening["admin_port"]
        serving = asyncio.create_task(program.serve_until(stopped))
        try:
            if ready:
                await gateway.until_ready()
            yield gateway
        finally:
            stopped.set_result(signal.SIGINT)
            await serving
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def table(
    model: str = "chat",
    *,
    weights: Mapping[str, int],
    namespace: str = "default",
    generation: int = 1,
    uid: str = "table-uid",
    **spec: Any,
) -> dict[str, Any]:
    """A RoutingTable object."""
    targets = [
        {"version": version, "weight": weight, "digest": f"sha256:{version}"} for version, weight in weights.items()
    ]
    cause = {"actor": "test", "reason": "Test", "at": "2026-01-01T00:00:00Z"}
    return {
        "apiVersion": "tidewheel.dev/v1alpha1",
        "kind": "RoutingTable",
        "metadata": {"name": model, "namespace": namespace, "uid": uid, "generation": generation},
        "spec": {"model": model, "salt": "salt", "targets": targets, "cause": cause, **spec},
    }


def write_routing(path: Path, tables: Sequence[Mapping[str, Any]], endpoints: Mapping[str, Sequence[Any]]) -> Path:
    """Replace a ``--static`` file in one step."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"tables": list(tables), "endpoints": dict(endpoints)}))
    temporary.replace(path)
    return path

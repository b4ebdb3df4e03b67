"""From the start of the engine's process to its first token, phase by phase, and its memory beside the KV pool.

    imports      until the program begins to load: Python, torch, finding the model
    load         weights, their packing, the kernels (compiled before: `python -m tidewheel.engine.kernels.cpu.build`)
    listen       scheduler, HTTP
    warm_up      until the engine has written a token by itself, which makes it ready
    first_token  until a client that polls /ready every 10 ms has the first token of its own request: the whole

    resident                 at the first token
    resident_beside_kv_pool  once every block of a pool of 64 MiB was written to, less those 64 MiB

The best and the worst of --repeats; files are in the page cache after the first.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import defaultdict
from datetime import datetime
from pathlib import Path

from bench.peers.closed_loop import Load, run
from bench.peers.servers import started, tidewheel
from bench.report import Report

POOL = 64 << 20
FIRST = Load("first", requests=1, at_once=1, own=8, output=1)
FILL = Load("fill", requests=4, at_once=2, own=900, output=8)


def phases(log: Path, began: float) -> dict[str, float]:
    """Seconds by name, from the times at which the engine's log says that a phase ended."""
    lines = {}
    for text in log.read_text().splitlines():
        if text.startswith("{"):
            line = json.loads(text)
            lines[line["msg"]] = line
    at = {name: datetime.fromisoformat(line["ts"]).timestamp() for name, line in lines.items()}
    loaded = at["model loaded"]
    load = lines["model loaded"]["seconds"]
    return {
        "imports": loaded - load - began,
        "load": load,
        "listen": at["serving"] - loaded,
        "warm_up": at["warmed up"] - at["serving"],
    }


async def once(folder: Path) -> dict[str, float]:
    """One start."""
    engine = tidewheel("--log-level", "info", "--kv-memory", str(POOL))
    log = folder / "engine.log"
    began = time.time()
    async with started(engine, folder=folder, log=log, poll_seconds=0.01) as server:
        await run(FIRST, server.port, seed=1)
        found = {"first_token": time.time() - began, "resident": server.resident_bytes() / 1e6}
        found |= phases(log, began)
        await run(FILL, server.port, seed=2)
        found["resident_beside_kv_pool"] = (server.resident_bytes() - POOL) / 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine_start", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="one start")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    report = Report("engine_start")
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(1 if options.short else options.repeats):
            for name, value in asyncio.run(once(Path(folder))).items():
                found[name].append(value)
    for name, values in found.items():
        unit = "MB" if name.startswith("resident") else "s"
        report.measure("smollm2", f"{name}_best", min(values), unit)
        report.measure("smollm2", f"{name}_worst", max(values), unit)


if __name__ == "__main__":
    main()

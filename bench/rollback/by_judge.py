"""Rollbacks that the judge decides: several models at once, each with a slow version that is retried when rejected."""

import asyncio
import math
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from bench.report import Report
from bench.rollback.load import Load
from bench.rollback.platform import gateway_urls, loaded, report_load
from e2e.platform.installation import RELEASE_NAMESPACE, SERVING_NAMESPACE, Installation
from e2e.platform.models import Model
from prometheus_client.parser import text_string_to_metric_families

from tidewheel.cli.rollout.control import Request, Verb, plan_control
from tidewheel.clients.errors import Conflict, Invalid
from tidewheel.clients.kubernetes import ROUTING_RULES, ROUTING_TABLES, KubeClient, load_access

SCRAPE_SECONDS = 1
_TIMED = "tidewheel_rollout_rollback_seconds"
_SETTLE_SECONDS = 1.0
_HISTORY_SECONDS = 15.0
_SLO = {"tpotMs": 200, "ttftMs": 10_000}
_ROLLOUT = {
    "steps": [{"percent": 50}, {"percent": 100}],
    "bakeSeconds": 600,
    "tickSeconds": 1,
    "judge": {"blockSeconds": 4 * SCRAPE_SECONDS, "cacheWarmSeconds": 0},
}


@dataclass(slots=True)
class Written:
    """Rollbacks as they are seen by whoever watches the tables: when, and of which model."""

    seen: list[tuple[float, str]] = field(default_factory=list)
    _shares: dict[str, int] = field(default_factory=dict)

    async def watch(self, client: KubeClient) -> None:
        """Until cancelled."""
        version = (await client.list(ROUTING_TABLES, SERVING_NAMESPACE)).resource_version
        while True:
            async for event in client.watch(ROUTING_TABLES, namespace=SERVING_NAMESPACE, resource_version=version):
                version = event.object["metadata"]["resourceVersion"]
                if event.type == "MODIFIED":
                    self._take(event.object, time.time())

    def _take(self, table: dict[str, Any], now: float) -> None:
        name, spec = table["metadata"]["name"], table["spec"]
        share = sum(target["weight"] for target in spec["targets"] if target["version"] == "v2")
        had, self._shares[name] = self._shares.get(name, 0), share
        if had and not share and spec["cause"]["reason"] == "RolledBack":
            self.seen.append((now, name))


async def measure_by_judge(platform: Installation, *, models: int, rounds: int, rate: float, report: Report) -> None:
    """``models`` side by side, ``rounds`` rollbacks of each."""
    chosen = [Model(f"judged-{number}", step_milliseconds=1, reply_tokens=3) for number in range(models)]
    slow = ["--step-time", "400,0.01,0.05"]
    for model in chosen:
        versions = model.version("v1", slo=_SLO), model.version("v2", arguments=slow, slo=_SLO)
        platform.apply(*versions, model.rule({"v1": 100}, rollout=_ROLLOUT))
    for model in chosen:
        await platform.has_split(model, {"v1": 100}, within_seconds=300)
    load, written = Load(gateway_urls(platform), [model.name for model in chosen], rate, max_tokens=3), Written()
    async with KubeClient(load_access(kubeconfig=platform.cluster.kubeconfig), user_agent="bench") as client:
        watching = asyncio.create_task(written.watch(client))
        async with loaded(load):
            await asyncio.sleep(_HISTORY_SECONDS)
            platform.apply(*(model.rule({"v1": 0, "v2": 100}, rollout=_ROLLOUT) for model in chosen))
            async with asyncio.TaskGroup() as group:
                for model in chosen:
                    group.create_task(_again_and_again(client, model.name, rounds))
            await asyncio.sleep(_SETTLE_SECONDS)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    case = f"by the judge, {len(load.urls)} gateways"
    last = [load.last_to(name, "v2", since=at, until=at + _SETTLE_SECONDS) - at for at, name in written.seen]
    report.distribution(case, "write_to_last", [1000 * seconds for seconds in last], "ms")
    _report_verdicts(report, case, await asyncio.to_thread(_operators, platform))
    report_load(report, case, load)


async def _again_and_again(client: KubeClient, model: str, rounds: int) -> None:
    """Wait until it is rejected, then ask for another try, as `tidewheel retry` does."""
    over: set[str] = set()
    while True:
        rule = await client.get(ROUTING_RULES, model, SERVING_NAMESPACE)
        rollout = rule.get("status", {}).get("rollout", {})
        # What came before the wish for v2 was how v1 got its traffic.
        if rollout.get("outcome") and rollout.get("canary") == "v2" and rollout["id"] not in over:
            if rollout["outcome"] != "Rejected":
                raise SystemExit(f"the rollout of {model} ended as {rollout['outcome']}: {rollout.get('message')}")
            over.add(rollout["id"])
            if len(over) == rounds:
                return
            await asyncio.sleep(_SETTLE_SECONDS)  # stragglers would show now
            await _retry(client, model)
        await asyncio.sleep(0.25)


async def _retry(client: KubeClient, model: str) -> None:
    while True:
        rule = await client.get(ROUTING_RULES, model, SERVING_NAMESPACE)
        table = await client.get(ROUTING_TABLES, model, SERVING_NAMESPACE)
        plan = plan_control(Request(verb=Verb.RETRY), rule=rule, table=table, actor="bench", now=datetime.now(UTC))
        try:
            await client.patch_json(ROUTING_TABLES, model, SERVING_NAMESPACE, plan.operations)
        except (Conflict, Invalid):
            continue
        return


def _operators(platform: Installation) -> list[str]:
    """Metrics of each operator; only the one that led has any of rollbacks."""
    pods = platform.get("pods", "-l", "app.kubernetes.io/component=operator", namespace=RELEASE_NAMESPACE)["items"]
    pages = []
    for pod in pods:
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9090/metrics", timeout=30) as answer:
            pages.append(answer.read().decode())
    return pages


def _report_verdicts(report: Report, case: str, pages: Sequence[str]) -> None:
    """A histogram: its mean is exact, a quantile is the edge above it."""
    count = total = 0.0
    buckets: dict[float, float] = {}
    for page in pages:
        for sample in (each for family in text_string_to_metric_families(page) for each in family.samples):
            if sample.name == f"{_TIMED}_count":
                count += sample.value
            elif sample.name == f"{_TIMED}_sum":
                total += sample.value
            elif sample.name == f"{_TIMED}_bucket":
                edge = float(sample.labels["le"])
                buckets[edge] = buckets.get(edge, 0) + sample.value
    if not count:
        raise SystemExit(f"no operator has timed a rollback ({_TIMED})")
    report.measure(case, "verdict_to_write_mean", 1000 * total / count, "ms")
    for share in (0.5, 0.99):
        edge = next(edge for edge, seen in sorted(buckets.items()) if seen >= share * count)
        at_most = 1000 * edge if math.isfinite(edge) else 1e9
        report.measure(case, f"verdict_to_write_p{share * 100:g}_at_most", at_most, "ms")
    report.measure(case, "verdict_to_write_samples", count, "count")

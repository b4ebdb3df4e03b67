"""Rollbacks that a person types: `kubectl-rollback` as a program, again and again."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.report import Report
from bench.rollback.load import Load
from bench.rollback.platform import gateway_urls, loaded, report_load
from e2e.platform.installation import SERVING_NAMESPACE, Installation
from e2e.platform.models import Model

from tidewheel.clients.kubernetes import ROUTING_TABLES, KubeClient, load_access

MODEL = Model("rollback-bench", step_milliseconds=1, reply_tokens=1)
SETTLE_SECONDS = 0.5


async def measure_by_hand(platform: Installation, *, rounds: int, rate: float, report: Report) -> None:
    """Roll back, put the old split back, and again."""
    platform.apply(MODEL.version("v1"), MODEL.version("v2", arguments=["--max-waiting", "999"]))
    platform.apply(MODEL.rule({"v1": 100, "v2": 0}))
    await platform.has_split(MODEL, {"v1": 100})
    platform.apply(MODEL.rule({"v1": 0, "v2": 100}))
    await platform.has_split(MODEL, {"v2": 100})
    load = Load(gateway_urls(platform), [MODEL.name], rate)
    samples: dict[str, list[float]] = {"command_to_write": [], "write_to_last": [], "write_to_confirmed": []}
    async with KubeClient(load_access(kubeconfig=platform.cluster.kubeconfig), user_agent="bench") as client:
        before = (await client.get(ROUTING_TABLES, MODEL.name, SERVING_NAMESPACE))["spec"]
        async with loaded(load):
            for _ in range(rounds):
                await asyncio.sleep(SETTLE_SECONDS)
                for metric, value in (await _roll_back(platform, load)).items():
                    samples[metric].append(value)
                await _put_back(client, before)
    case = f"by hand, {len(load.urls)} gateways"
    for metric, values in samples.items():
        report.distribution(case, metric, values, "ms")
    report_load(report, case, load)
    platform.kubectl("delete", "routingrule,modelversion", "--all", "--wait=false")


async def _roll_back(platform: Installation, load: Load) -> dict[str, float]:
    program = Path(sys.executable).with_name("kubectl-rollback")
    arguments = [MODEL.name, "-n", SERVING_NAMESPACE, "--kubeconfig", str(platform.cluster.kubeconfig), "-o", "json"]
    entered = time.time()
    process = await asyncio.create_subprocess_exec(program, *arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"kubectl-rollback ended with {process.returncode}: {output.decode()}")
    said: dict[str, Any] = json.loads(output)
    await asyncio.sleep(SETTLE_SECONDS)  # stragglers would show now
    sent, written = float(said["sentAt"]), float(said["writtenAt"])
    last = load.last_to(MODEL.name, "v2", since=sent, until=time.time())
    return {
        "command_to_write": (written - entered) * 1000,
        "write_to_last": (last - sent) * 1000,
        "write_to_confirmed": max(gateway["ms"] for gateway in said["gateways"]),
    }


async def _put_back(client: KubeClient, spec: dict[str, Any]) -> None:
    """The split before the rollback, as if nothing had been rejected."""
    operations = [{"op": "add", "path": "/spec", "value": spec}]
    await client.patch_json(ROUTING_TABLES, MODEL.name, SERVING_NAMESPACE, operations)

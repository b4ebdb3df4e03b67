"""How long a model takes from `kubectl apply` to its first token, phase by phase.

Real weights (SmolLM2-135M-Instruct, checked against their sha256), real engine, real kubelet, CPU. Each round applies a
version and a rule of a model that nobody has served before. Moments are taken where a person could see them: in the
API server's watch, and at the client.

    pod_created    the operator has ordered the replica
    started        the container runs (scheduling, sandbox; the image is there already)
    engine_ready   weights loaded and checked, and a token generated
    routed         the operator has written the split
    first_token    the client has the first token, through a gateway

Each phase is the time since the one before; total is from apply to first token.
"""

import argparse
import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from bench.cluster.installed import installed_platform
from bench.report import Report
from e2e.platform.installation import SERVING_NAMESPACE, Installation

from tidewheel.clients.kubernetes import PODS, ROUTING_TABLES, KubeClient, load_access

EXAMPLE = Path(__file__).parents[1] / "examples/chat.yaml"
PHASES = ("pod_created", "started", "engine_ready", "routed", "first_token")
LIMIT_SECONDS = 300.0


async def cold_start(platform: Installation, client: KubeClient, model: str) -> dict[str, float]:
    """Monotonic moments of one cold start, ``apply`` first."""
    moments = {"apply": time.monotonic()}
    await asyncio.to_thread(platform.apply, *_objects(model))
    async with asyncio.timeout(LIMIT_SECONDS):
        await _watch_pod(client, model, moments)
        await _await_table(client, model, moments)
        await _first_token(platform.gateway_url, model)
    moments["first_token"] = time.monotonic()
    return moments


def _objects(model: str) -> list[dict[str, Any]]:
    """The example, under another name."""
    version, rule = yaml.safe_load_all(EXAMPLE.read_text())
    version["metadata"]["name"] = f"{model}-v1"
    rule["metadata"]["name"] = version["spec"]["model"] = rule["spec"]["model"] = model
    return [version, rule]


async def _watch_pod(client: KubeClient, model: str, moments: dict[str, float]) -> None:
    selector = f"tidewheel.dev/model={model}"
    while "engine_ready" not in moments:
        listed = await client.list(PODS, SERVING_NAMESPACE, label_selector=selector)
        for pod in listed.items:
            _note(pod, moments)
        async for event in client.watch(
            PODS, namespace=SERVING_NAMESPACE, resource_version=listed.resource_version, label_selector=selector
        ):
            if event.type != "BOOKMARK":
                _note(event.object, moments)
            if "engine_ready" in moments:
                return


def _note(pod: dict[str, Any], moments: dict[str, float]) -> None:
    now = time.monotonic()
    moments.setdefault("pod_created", now)
    status = pod["status"]
    if any("running" in container["state"] for container in status.get("containerStatuses", ())):
        moments.setdefault("started", now)
    if any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ())):
        moments.setdefault("engine_ready", now)


async def _await_table(client: KubeClient, model: str, moments: dict[str, float]) -> None:
    listed = await client.list(ROUTING_TABLES, SERVING_NAMESPACE)
    if all(table["metadata"]["name"] != model for table in listed.items):
        async for event in client.watch(
            ROUTING_TABLES, namespace=SERVING_NAMESPACE, resource_version=listed.resource_version
        ):
            if event.type == "ADDED" and event.object["metadata"]["name"] == model:
                break
    moments["routed"] = time.monotonic()


async def _first_token(url: str, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": True}
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                async for line in response.content:
                    if response.status == 200 and b'"content":"' in line.replace(b" ", b"") and b'""' not in line:
                        return
            await asyncio.sleep(0.01)  # the gateway has not seen the table yet


async def measure(platform: Installation, *, rounds: int, report: Report) -> None:
    """Each round's phases, then their distribution."""
    samples: dict[str, list[float]] = {name: [] for name in (*PHASES, "total")}
    async with KubeClient(load_access(kubeconfig=platform.cluster.kubeconfig), user_agent="bench") as client:
        for index in range(rounds):
            model = f"cold-{index}"
            moments = await cold_start(platform, client, model)
            order = ["apply", *PHASES]
            for earlier, later in itertools.pairwise(order):
                samples[later].append((moments[later] - moments[earlier]) * 1000)
            samples["total"].append((moments["first_token"] - moments["apply"]) * 1000)
            platform.kubectl("delete", "routingrule", model)
            platform.kubectl("delete", "modelversion", f"{model}-v1", "--wait=false")
    for name, values in samples.items():
        report.distribution("smollm2 on CPU", name, values, "ms", shares=(0.5,))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cold_start", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="2 rounds instead of 10")
    parser.add_argument("--rounds", type=int, help="that many rounds")
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.short else 10)
    report = Report("cold_start")
    with installed_platform("bench-cold-start") as platform:
        asyncio.run(measure(platform, rounds=rounds, report=report))


if __name__ == "__main__":
    main()

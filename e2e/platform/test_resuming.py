"""A reply whose gateway pod is killed goes on at the other gateway, through the Redis that the chart runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from e2e.platform.installation import RELEASE_NAMESPACE, Installation
from e2e.platform.models import Model
from tests.waiting import eventually

_TOKENS = 120


@pytest.mark.long
async def test_a_reply_outlives_the_gateway_that_wrote_it(tidewheel: Installation) -> None:
    model = Model("resumed")
    await tidewheel.serve(model, {"v1": 100})
    one, other = gateways(tidewheel)
    body = {
        "model": f"serving/{model.name}",
        "stream": True,
        "max_tokens": _TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
    }
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        await both_share_replies(tidewheel, session, {**body, "max_tokens": 1, "stream": False})
        async with session.post(f"{address(one)}/v1/chat/completions", json=body) as whole:
            undisturbed = text_of(await whole.text())
        async with session.post(
            f"{address(one)}/v1/chat/completions", json=body, headers={"X-Resumable": "true"}
        ) as answer:
            assert answer.headers["x-tidewheel-resumable"] == "true"
            reply = answer.headers["x-tidewheel-reply"]
            seen = b""
            while seen.count(b"id: ") < 6:
                seen += await answer.content.readany()
            tidewheel.kubectl(
                *("delete", "pod", one["metadata"]["name"], "--grace-period=0", "--force", "--wait=false"),
                namespace=RELEASE_NAMESPACE,
            )
        seen = seen[: seen.rindex(b"\n\n") + 2]
        last = seen.count(b"id: ")
        async with session.get(
            f"{address(other)}/v1/replies/{reply}/events", headers={"Last-Event-ID": str(last)}
        ) as resumed:
            assert resumed.status == 200, await resumed.text()
            rest = await resumed.text()
    everything = seen.decode() + rest
    assert numbers_of(everything) == list(range(1, len(numbers_of(everything)) + 1))
    assert text_of(everything) == undisturbed
    await eventually(lambda: len(gateways(tidewheel)) == 2, within_seconds=120, what="two gateways are ready again")


async def both_share_replies(tidewheel: Installation, session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
    """Each has found the Redis; else the gateways' own words say why not."""
    deadline = asyncio.get_running_loop().time() + 120
    for pod in gateways(tidewheel):
        while True:
            async with session.post(
                f"{address(pod)}/v1/chat/completions", json=body, headers={"X-Resumable": "true"}
            ) as answer:
                if answer.headers["x-tidewheel-resumable"] == "true":
                    break
            if asyncio.get_running_loop().time() > deadline:
                logs = ("logs", pod["metadata"]["name"], "--tail=30")
                raise AssertionError(tidewheel.kubectl(*logs, namespace=RELEASE_NAMESPACE))
            await asyncio.sleep(0.5)


def gateways(tidewheel: Installation) -> list[dict[str, Any]]:
    """The ready ones."""
    selector = "--selector=app.kubernetes.io/component=gateway"
    pods: list[dict[str, Any]] = tidewheel.get("pods", selector, namespace=RELEASE_NAMESPACE)["items"]
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp") and is_ready(pod)]


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def address(pod: dict[str, Any]) -> str:
    """Pods of the local cluster answer on this host."""
    return f"http://{pod['status']['podIP']}:8080"


def numbers_of(stream: str) -> list[int]:
    return [int(line[4:]) for line in stream.splitlines() if line.startswith("id: ")]


def text_of(stream: str) -> str:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert not any("error" in chunk for chunk in chunks)
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])

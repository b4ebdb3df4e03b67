"""Deleting objects that carry traffic, by mistake or by a Git prune, and restoring them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from e2e.platform.installation import Installation
from e2e.platform.models import Model
from e2e.platform.traffic import steady_load, stream
from tests.waiting import eventually

from tidewheel.cli.cluster.local_cluster import LocalCluster


async def test_a_deleted_rule_leaves_its_split_in_force_and_carries_on_when_applied_again(
    tidewheel: Installation,
) -> None:
    model = Model("pruned-rule")
    split = {"v1": 80, "v2": 20}
    await tidewheel.serve(model, split)
    before = tidewheel.pod_uids(model)
    async with steady_load(tidewheel.gateway_url, model.name) as load:
        tidewheel.kubectl("delete", "routingrule", model.name)
        await eventually(
            lambda: "orphanedAt" in tidewheel.get("routingtable", model.name)["spec"], what="the operator saw it go"
        )
        served = len(load.streams)
        await eventually(lambda: len(load.streams) > served + 50, within_seconds=30)
        tidewheel.apply(model.rule(split))
        await eventually(
            lambda: "orphanedAt" not in tidewheel.get("routingtable", model.name)["spec"], what="the rule is back"
        )
    assert load.problems == []
    assert tidewheel.weights(model) == {"v1": 8000, "v2": 2000}
    assert tidewheel.pod_uids(model) == before


@pytest.mark.parametrize("cascade", ["background", "foreground"])
async def test_deleting_the_version_that_serves_fails_no_request_and_ends_no_pod(
    tidewheel: Installation, cascade: str
) -> None:
    model = Model(f"pruned-{cascade}")
    await tidewheel.serve(model, {"v1": 100})
    before = tidewheel.pod_uids(model)
    async with steady_load(tidewheel.gateway_url, model.name) as load:
        tidewheel.kubectl("delete", "modelversion", f"{model.name}-v1", f"--cascade={cascade}", "--wait=false")
        served = len(load.streams)
        await eventually(lambda: len(load.streams) > served + 50, within_seconds=30)
        tidewheel.apply(model.version("v1"))
        await tidewheel.has_split(model, {"v1": 100})
    assert load.problems == []
    assert tidewheel.pod_uids(model) == before


async def test_objects_restored_without_statuses_keep_the_split_in_force(tidewheel: Installation) -> None:
    """A backup knows specs only. The rule still wants 50/50; a person had rolled back to v1 alone."""
    model = Model("restored")
    await tidewheel.serve(model, {"v1": 100})
    await tidewheel.serve(model, {"v1": 50, "v2": 50})
    table = tidewheel.get("routingtable", model.name)
    rolled_back = [{**t, "weight": 10_000 if t["version"] == "v1" else 0} for t in table["spec"]["targets"]]
    rejected = [{**_of(table, "v2"), "reason": "slow", "at": table["spec"]["cause"]["at"]}]
    patch = {"spec": {"targets": rolled_back, "rejected": rejected}}
    tidewheel.kubectl("patch", "routingtable", model.name, "--type=merge", f"--patch={json.dumps(patch)}")
    await tidewheel.has_split(model, {"v1": 100})
    backup = [
        tidewheel.get(kind, name)
        for kind, name in (
            ("modelversion", f"{model.name}-v1"),
            ("modelversion", f"{model.name}-v2"),
            ("routingrule", model.name),
            ("routingtable", model.name),
        )
    ]
    before = {pod["metadata"]["uid"] for pod in tidewheel.pods(model, "v1")}
    async with tidewheel.without_operators():
        for item in backup:
            kind, name = item["kind"], item["metadata"]["name"]
            tidewheel.kubectl("delete", kind, name, "--wait=false")
            if kind == "ModelVersion":
                tidewheel.kubectl("patch", kind, name, "--type=merge", '--patch={"metadata":{"finalizers":null}}')
            item.pop("status", None)
            item["metadata"] = {"name": name, "namespace": item["metadata"]["namespace"]}
        tidewheel.apply(*backup)
    await eventually(
        lambda: tidewheel.condition("routingrule", model.name, "Degraded").get("reason") == "VersionRejected",
        within_seconds=30,
        every=0.5,
        what="the operator took the restored objects up",
    )
    assert tidewheel.weights(model) == {"v1": 10_000}
    serving = {pod["metadata"]["uid"] for pod in tidewheel.pods(model, "v1")}
    assert before <= serving, "the replicas that served were adopted"


def _of(table: dict[str, Any], version: str) -> dict[str, Any]:
    targets = table["spec"]["targets"]
    found = next(t for t in targets if t["version"] == version)
    return {"version": version, "digest": found["digest"]}


async def test_streams_of_a_deleted_version_without_weight_end_complete_before_its_pod_goes(
    tidewheel: Installation,
) -> None:
    model = Model("retired", step_milliseconds=100, reply_tokens=100)
    cool_at_once = {"keepPreviousSeconds": 0}
    tidewheel.apply(model.version("v2"), model.rule({"v2": 100}, rollout=cool_at_once))
    await tidewheel.has_split(model, {"v2": 100})
    async with aiohttp.ClientSession() as session:
        opened = [
            asyncio.create_task(stream(session, tidewheel.gateway_url, model.name, conversation=f"long-{i}"))
            for i in range(5)
        ]
        await eventually(lambda: _running(tidewheel, model, "v2") == 5, within_seconds=20, what="five streams are open")
        tidewheel.apply(model.version("v1"), model.rule({"v1": 100}, rollout=cool_at_once))
        await tidewheel.has_split(model, {"v1": 100})
        assert not any(task.done() for task in opened), "the streams ended before the deletion; lengthen them"
        tidewheel.kubectl("delete", "modelversion", f"{model.name}-v2", "--wait=false")
        replies = await asyncio.gather(*opened)
    assert [reply.problem for reply in replies] == [None] * 5
    assert all(reply.is_complete and reply.version == "v2" and reply.pieces == 100 for reply in replies)
    await eventually(lambda: not tidewheel.pods(model, "v2"), within_seconds=60, every=0.5, what="the pod is gone")
    await eventually(
        lambda: not tidewheel.get("modelversions", f"--field-selector=metadata.name={model.name}-v2")["items"],
        within_seconds=20,
        every=0.5,
        what="the ModelVersion is gone",
    )


def _running(tidewheel: Installation, model: Model, version: str) -> int:
    """Streams open on a version's engines, read from their own metrics through the API server."""
    total = 0
    for pod in tidewheel.pods(model, version):
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}:8000/proxy/metrics"
        for line in tidewheel.kubectl("get", f"--raw={path}").splitlines():
            if line.startswith("vllm:num_requests_running"):
                total += int(float(line.rsplit(" ", 1)[1]))
    return total


async def test_pods_stuck_terminating_on_a_vanished_node_are_replaced(
    tidewheel: Installation, local_cluster: LocalCluster
) -> None:
    model = Model("vanished")
    nodes = [node["metadata"]["name"] for node in tidewheel.get("nodes")["items"]]
    lost = len(nodes)  # nodes are numbered from 1
    pinned = {"cpu": "20m", "memory": "256Mi", "pod": {"affinity": _prefers(nodes[-1])}}
    tidewheel.apply(model.version("v1", replica=pinned), model.rule({"v1": 100}))
    await tidewheel.has_split(model, {"v1": 100})
    (pod,) = tidewheel.pods(model)
    assert pod["spec"]["nodeName"] == nodes[-1]
    tidewheel.kubectl("cordon", nodes[-1])
    local_cluster.cut(lost)
    try:
        tidewheel.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
        await eventually(
            lambda: any(_is_ready(other) for other in tidewheel.pods(model)),
            within_seconds=90,  # the leading operator may be on that node: its Lease runs out first
            every=0.5,
            what="a replacement serves",
        )
        stuck = [p["metadata"]["name"] for p in tidewheel.pods(model) if "deletionTimestamp" in p["metadata"]]
        assert stuck == [pod["metadata"]["name"]]
    finally:
        local_cluster.reconnect(lost)
        tidewheel.kubectl("uncordon", nodes[-1])
    await eventually(
        lambda: len(tidewheel.pods(model)) == 1,
        within_seconds=90,
        every=0.5,
        what="the stuck pod goes with its node's return",
    )


def _prefers(node: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    preferred = [{"weight": 100, "preference": term}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _is_ready(pod: dict[str, Any]) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

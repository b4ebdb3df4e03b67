"""Simulated nodes: pods on them have phases and addresses, but no processes. For counting in thousands."""

from __future__ import annotations

import json

from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.cli.cluster.processes import Launch, ProcessTable
from tidewheel.cli.cluster.sandboxes import CONTROL_PLANE
from tidewheel.cli.cluster.settings import ClusterSettings
from tidewheel.cli.cluster.waiting import wait_until

KWOK = "kwok"
# Only pods that tolerate it land there, so that nothing real does by accident.
_MARK = {"kwok.x-k8s.io/node": "fake"}


def start_kwok(
    count: int, *, settings: ClusterSettings, binaries: Binaries, plane: ControlPlane, processes: ProcessTable
) -> None:
    """Start the simulator unless it runs, create `count` nodes and wait until they are Ready."""
    client = plane.kubeconfig_for(KWOK, user="kwok", groups=["system:masters"])
    arguments = [
        f"--kubeconfig={client}",
        f"--config={binaries.path('stages.yaml')}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--server-address=127.0.0.1:10247",
        "--node-lease-duration-seconds=40",
    ]
    processes.start(Launch(KWOK, [str(binaries.path(KWOK)), *arguments], inside=CONTROL_PLANE))
    plane.apply(*render_nodes(count, settings))
    wait_until(
        lambda: _ready(plane) >= count,
        what=f"readiness of {count} simulated nodes",
        timeout_seconds=settings.ready_timeout_seconds,
        poll_seconds=0.3,
        failed=lambda: processes.failure(KWOK),
    )


def render_nodes(count: int, settings: ClusterSettings) -> list[dict[str, object]]:
    resources = {"cpu": "64", "memory": "512Gi", "pods": "250"}
    if settings.gpus:
        resources[settings.gpu_resource] = str(settings.gpus)
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"{settings.name}-kwok-{number}",
                "annotations": _MARK,
                "labels": {"type": "kwok", "kubernetes.io/hostname": f"{settings.name}-kwok-{number}"},
            },
            "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
            "status": {"capacity": resources, "allocatable": resources},
        }
        for number in range(count)
    ]


def _ready(plane: ControlPlane) -> int:
    nodes = json.loads(plane.kubectl("get", "nodes", "--selector=type=kwok", "--output=json"))["items"]
    conditions = [condition for node in nodes for condition in node["status"].get("conditions", [])]
    return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

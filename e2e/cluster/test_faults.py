"""Faults that tests of everything else inject, and what the cluster does under them."""

from __future__ import annotations

import signal

import pytest
from e2e.cluster.pods import await_phase, create, field, run_in

from tidewheel.cli.cluster.control_plane import API_SERVER
from tidewheel.cli.cluster.errors import ToolError
from tidewheel.cli.cluster.local_cluster import LocalCluster
from tidewheel.cli.cluster.waiting import wait_until


def allocatable_gpus(cluster: LocalCluster, node: str) -> str:
    return cluster.kubectl("get", "node", node, "--output=jsonpath={.status.allocatable.nvidia\\.com/gpu}")


def test_pods_and_gpus_outlive_a_kubelet(local_cluster: LocalCluster, namespace: str) -> None:
    cluster, node = local_cluster, local_cluster.assembly.nodes[1].name
    create(cluster, namespace, "steady", "sleep", "600", gpus=1, nodeName=node)
    await_phase(cluster, namespace, "steady")
    began = field(cluster, namespace, "steady", "status.containerStatuses[0].state.running.startedAt")
    cluster.stop("kubelet-1", sig=signal.SIGKILL)
    cluster.start("kubelet-1")
    cluster.break_gpus(1, ["gpu-7"])  # seen only by a kubelet that the plugin is registered with
    wait_until(lambda: allocatable_gpus(cluster, node) == "7", what="notice of the broken GPU", timeout_seconds=60)
    cluster.break_gpus(1, [])
    wait_until(lambda: allocatable_gpus(cluster, node) == "8", what="notice of the mended GPU", timeout_seconds=60)
    assert run_in(cluster, namespace, "steady", "echo", "here") == "here"
    assert field(cluster, namespace, "steady", "status.containerStatuses[0].state.running.startedAt") == began


def test_a_cut_node_is_out_of_reach_until_it_is_reconnected(local_cluster: LocalCluster, namespace: str) -> None:
    cluster = local_cluster
    create(cluster, namespace, "far", "sleep", "600", nodeName=cluster.assembly.nodes[2].name)
    await_phase(cluster, namespace, "far")
    cluster.cut(2)
    try:
        with pytest.raises(ToolError):
            cluster.kubectl("exec", f"--namespace={namespace}", "far", "--", "true", timeout_seconds=3)
        assert cluster.processes.find("kubelet-2"), "a cut node goes on running"
    finally:
        cluster.reconnect(2)
    wait_until(lambda: not cluster.assembly.unready_nodes(), what="return of the node", timeout_seconds=60)
    assert run_in(cluster, namespace, "far", "echo", "back") == "back"


def test_the_api_server_comes_back_after_a_kill(local_cluster: LocalCluster) -> None:
    local_cluster.stop(API_SERVER, sig=signal.SIGKILL)
    assert not local_cluster.assembly.plane.is_ready()
    local_cluster.start(API_SERVER)
    local_cluster.assembly.plane.await_ready()
    assert not local_cluster.status().problem


def test_pods_on_simulated_nodes_run_without_processes(local_cluster: LocalCluster, namespace: str) -> None:
    cluster = local_cluster
    cluster.add_simulated_nodes(3)
    for number in range(3):
        node = f"{cluster.settings.name}-kwok-{number}"
        create(cluster, namespace, f"pod-{number}", "sleep", "600", nodeName=node)
    await_phase(cluster, namespace, "pod-0", "pod-1", "pod-2")
    cluster.kubectl("delete", "nodes", "--selector=type=kwok")

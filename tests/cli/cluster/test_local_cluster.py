"""A whole cluster: it is gone without a trace, whatever was killed and whenever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidewheel.cli.cluster.cleanup import find_leftovers
from tidewheel.cli.cluster.control_plane import API_SERVER, ControlPlane
from tidewheel.cli.cluster.errors import CollisionError
from tidewheel.cli.cluster.folders import ClusterFolder
from tidewheel.cli.cluster.local_cluster import LocalCluster
from tidewheel.cli.cluster.progress import QuietProgress
from tidewheel.cli.cluster.sandboxes import CONTROL_PLANE, node_sandbox
from tidewheel.cli.cluster.settings import ClusterSettings
from tidewheel.cli.cluster.waiting import wait_until

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(os.geteuid() != 0, reason="a node makes namespaces, which needs root"),
]


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name of this run, with state in a folder of its own; whatever is up at the end is taken down."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    chosen = f"test-{os.getpid()}"
    yield chosen
    LocalCluster(ClusterSettings(name=chosen), QuietProgress()).down()


def cluster_of(name: str, *, gpus: int = 2) -> LocalCluster:
    return LocalCluster(ClusterSettings(name=name, gpus=gpus, dns=False, ready_timeout_seconds=120), QuietProgress())


def start_up(name: str) -> subprocess.Popen[bytes]:
    """`tidewheel cluster up` as a process of its own."""
    command = [sys.executable, "-m", "tidewheel.cli.cluster", "up", f"--name={name}", "--gpus=2"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("moment", ["control-plane", "etcd", "node-1", "containerd-1", "kubelet-1"])
def test_after_an_up_that_was_killed_down_leaves_nothing(name: str, moment: str, control_plane: ControlPlane) -> None:
    folder = ClusterFolder.of(name)
    with start_up(name) as up:
        await_that((folder.processes / f"{moment}.json").exists)
        up.kill()
    assert find_leftovers(folder).processes
    cluster_of(name).down()
    assert not find_leftovers(folder)
    assert control_plane.is_ready(), "something of another cluster was taken down"


def test_killed_parts_are_repaired_by_up_and_removed_by_down(name: str) -> None:
    with start_up(name) as up:  # a first one, killed half way
        await_that((ClusterFolder.of(name).processes / "kubelet-1.json").exists)
        up.kill()
    cluster = cluster_of(name)
    cluster.up()
    cluster.kubectl("create", "configmap", "kept")
    for component in (API_SERVER, "kubelet-1", "containerd-1", "gpus-1"):
        cluster.stop(component, sig=signal.SIGKILL)
    assert cluster.status().problem
    cluster_of(name).up()
    assert not cluster.status().problem
    assert cluster.kubectl("get", "configmap", "kept", "--output=name").strip() == "configmap/kept"

    with pytest.raises(CollisionError, match="take it down first"):
        cluster_of(name, gpus=1).up()
    remembered = link_addresses(cluster)
    cluster.power_off(1)
    cluster.power_on(1)
    assert link_addresses(cluster) == remembered, "neighbours go on sending to the old address for up to 50 seconds"
    cluster.stop(CONTROL_PLANE, sig=signal.SIGKILL)  # as after a restart of the machine
    cluster_of(name).up()
    assert cluster.kubectl("get", "configmap", "kept", "--output=name").strip() == "configmap/kept"
    cluster.power_off(1)
    cluster.down()
    assert not find_leftovers(cluster.folder)


def link_addresses(cluster: LocalCluster) -> list[str]:
    """Of the control plane's bridge and of the first node, as all others remember them."""
    sandboxes = cluster.assembly.sandboxes
    links = {CONTROL_PLANE: "wire", node_sandbox(1): "eth0"}
    shown = [sandboxes.run(sandbox, "ip", "-json", "link", "show", "dev", link) for sandbox, link in links.items()]
    return [json.loads(each)[0]["address"] for each in shown]


def await_that(condition: Callable[[], bool]) -> None:
    wait_until(condition, what="the moment to kill", timeout_seconds=60, poll_seconds=0.002)

"""Other people's clusters behind the same interface, and what the commands say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidewheel.cli.cluster import preflight
from tidewheel.cli.cluster.commands import cluster
from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.cli.cluster.errors import ClusterError, CollisionError, HostError
from tidewheel.cli.cluster.folders import ClusterFolder, running_names
from tidewheel.cli.cluster.progress import QuietProgress
from tidewheel.cli.cluster.providers import open_cluster
from tidewheel.cli.cluster.settings import ClusterSettings


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.component
def test_an_existing_cluster_is_used_as_it_is(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    opened = open_cluster(ClusterSettings(name="theirs"), progress=QuietProgress(), provider="existing")
    opened.up()
    assert running_names() == ["theirs"]
    again = open_cluster(ClusterSettings(name="theirs"), progress=QuietProgress())
    assert again.status().api == control_plane.url
    assert "default" in again.kubectl("get", "namespaces", "--output=name")
    again.down()
    assert running_names() == []
    assert control_plane.is_ready(), "it is not ours to stop"


def test_a_missing_kubeconfig_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(HostError, match=r"no kubeconfig at .*nowhere"):
        open_cluster(ClusterSettings(), progress=QuietProgress(), provider="existing").up()


def test_kind_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HostError, match=r"kind\.sigs\.k8s\.io"):
        open_cluster(ClusterSettings(), progress=QuietProgress(), provider="kind").up()


KIND = """#!/bin/sh
echo "$@" >> "$KIND_CALLS"
"""
KUBECTL = """#!/bin/sh
case "$*" in *"get nodes --output=name"*) echo node/one;; *) echo "$@" >> "$KIND_CALLS";; esac
"""


def test_kind_is_asked_for_nodes_and_its_nodes_offer_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kind needs Docker, so what is checked here is what it would be told."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"kind": KIND, "kubectl": KUBECTL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("KIND_CALLS", str(tmp_path / "calls"))
    opened = open_cluster(ClusterSettings(name="k", gpus=4), progress=QuietProgress(), provider="kind")
    opened.up()
    create, patch = (tmp_path / "calls").read_text().splitlines()
    assert create.startswith("create cluster --name=k")
    operations = json.loads(patch.partition("--patch=")[2])
    assert operations == [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "4"}]


def test_a_cluster_of_another_kind_is_not_touched(state: Path) -> None:
    ClusterFolder.of("mine").record_provider("kind")
    with pytest.raises(ClusterError, match="is of provider 'kind', not 'local'"):
        open_cluster(ClusterSettings(name="mine"), progress=QuietProgress(), provider="local")


def test_status_of_a_cluster_that_is_not_there_names_those_that_are() -> None:
    ClusterFolder.of("other").record_provider("kind")
    result = CliRunner().invoke(cluster, ["status", "--name=mine"])
    assert isinstance(result.exception, ClusterError)
    assert "cluster up --name mine" in str(result.exception)
    assert "other" in str(result.exception)


def test_a_cable_of_that_name_is_a_collision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "host_link", lambda _: "lo")
    with pytest.raises(CollisionError, match=r"network link lo.*choose another with --name"):
        preflight.check_collisions(ClusterFolder.of("mine"))


def test_missing_programs_are_named_by_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_PATH", str(tmp_path))
    assert {"containerd", "runc", "iptables", "conntrack", "iproute2"} <= set(preflight.missing_packages())
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(HostError, match=r"please install .*containerd.*no apt-get"):
        preflight.install_packages(QuietProgress())


def test_a_person_without_root_is_told_the_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(HostError, match=r"sudo.*--provider kind"):
        preflight.check_root()

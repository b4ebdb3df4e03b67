"""What the components are told. Each value here was found to matter on a real machine."""

from __future__ import annotations

import tomllib
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from tidewheel.cli.cluster.certificates import KeyPair
from tidewheel.cli.cluster.cleanup import mounts_below
from tidewheel.cli.cluster.container_runtime import render_config, render_pod_network
from tidewheel.cli.cluster.dns import render_corefile, render_objects
from tidewheel.cli.cluster.go_modules import KUBERNETES, MODULES
from tidewheel.cli.cluster.kind_cluster import render_config as render_kind
from tidewheel.cli.cluster.kwok import render_nodes
from tidewheel.cli.cluster.node import render_kubelet, render_proxy
from tidewheel.cli.cluster.prometheus import render_config as render_prometheus
from tidewheel.cli.cluster.settings import ClusterLayout, ClusterSettings, NetworkPlan

LAYOUT = ClusterLayout(ClusterSettings(name="demo"), NetworkPlan(IPv4Network("10.201.0.0/16")))
FOLDER = Path("/state/demo/nodes/1")


def cri() -> dict[str, Any]:
    plugins: dict[str, Any] = tomllib.loads(render_config(FOLDER, "overlayfs"))["plugins"]
    section: dict[str, Any] = plugins["io.containerd.grpc.v1.cri"]
    return section


def test_containerd_starts_pods_where_the_machine_forbids_lower_oom_scores() -> None:
    assert cri()["restrict_oom_score_adj"] is True


def test_containerd_mounts_the_host_into_every_container() -> None:
    runc = cri()["containerd"]["runtimes"]["runc"]
    assert runc["base_runtime_spec"] == str(FOLDER / "container.json")
    assert runc["options"]["SystemdCgroup"] is False


def test_the_kubelet_runs_on_both_versions_of_control_groups_and_with_swap() -> None:
    identity = KeyPair(Path("a"), Path("b"))
    config = render_kubelet(LAYOUT, cgroup="g", identity=identity, authority=Path("c"), resolver=Path("r"))
    assert (config["failCgroupV1"], config["failSwapOn"], config["cgroupRoot"]) == (False, False, "/g")
    assert config["clusterDNS"] == ["10.201.240.10"]


def test_callers_that_are_no_pods_of_a_node_are_masqueraded_there() -> None:
    assert render_proxy(LAYOUT, index=2, client=Path("c"))["clusterCIDR"] == "10.201.2.0/24"


def test_pods_of_different_nodes_get_different_addresses() -> None:
    ranges = [render_pod_network(LAYOUT.network, index)["plugins"][0]["ipam"]["ranges"] for index in (1, 2)]  # type: ignore[index]
    assert ranges == [[[{"subnet": "10.201.1.0/24"}]], [[{"subnet": "10.201.2.0/24"}]]]


def test_dns_listens_where_its_service_points() -> None:
    _, endpoints, *_ = render_objects(LAYOUT.network)
    assert endpoints["endpoints"] == [{"addresses": ["10.201.0.2"]}]
    assert "bind 10.201.0.2" in render_corefile(LAYOUT.network, Path("k"))


def test_prometheus_keeps_the_labels_that_the_gateway_gives() -> None:
    config = render_prometheus(Path("k"), 5)
    assert config["global"]["scrape_interval"] == "5000ms"  # type: ignore[index]
    jobs: Any = config["scrape_configs"]
    assert [job["honor_labels"] for job in jobs] == [True, True]


def test_nothing_real_lands_on_simulated_nodes_by_accident() -> None:
    nodes: list[Any] = render_nodes(3, ClusterSettings(name="demo"))
    assert [node["metadata"]["name"] for node in nodes] == ["demo-kwok-0", "demo-kwok-1", "demo-kwok-2"]
    assert all(node["spec"]["taints"][0]["effect"] == "NoSchedule" for node in nodes)


def test_kind_gets_a_worker_for_each_further_node() -> None:
    assert [node["role"] for node in render_kind(ClusterSettings(nodes=2))["nodes"]] == ["control-plane", "worker"]  # type: ignore[index, attr-defined]


def test_a_layout_survives_being_written(tmp_path: Path) -> None:
    LAYOUT.save(tmp_path / "cluster.json")
    assert ClusterLayout.load(tmp_path / "cluster.json") == LAYOUT


def test_only_mounts_inside_the_folder_are_removed_and_inner_ones_first() -> None:
    lines = [f"1 1 0:1 / {place} rw - tmpfs tmpfs rw" for place in ("/s/demo/a", "/s/demo/a/b", "/s/demo-2/c", "/s")]
    assert mounts_below(Path("/s/demo"), "\n".join(lines)) == ["/s/demo/a/b", "/s/demo/a"]


def test_a_server_says_its_version() -> None:
    assert f"gitVersion={KUBERNETES.version}" in KUBERNETES.link_flags()


def test_every_module_is_locked() -> None:
    for module in MODULES:
        assert (module.source / "go.mod").exists()
        assert (module.source / "go.sum").exists()

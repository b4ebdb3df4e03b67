"""What a person chooses about a local cluster, and the addresses that follow from it."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from tidewheel.cli.cluster.errors import ClusterError

DEFAULT_NAME = "tidewheel"
# Private addresses that home routers, VPNs and Docker use least.
SUBNETS = [IPv4Network(f"10.{number}.0.0/16") for number in range(201, 250)]


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Every choice of `tidewheel cluster up`. Times are limits for one condition each, not waits."""

    name: str = DEFAULT_NAME
    nodes: int = 1
    gpus: int = 8
    gpu_resource: str = "nvidia.com/gpu"
    prometheus: bool = False
    dns: bool = True
    kwok_nodes: int = 0
    scrape_interval_seconds: float = 5
    ready_timeout_seconds: float = 60

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 9:
            raise ClusterError(f"--nodes {self.nodes}: a local cluster has 1 to 9 nodes with processes")
        if not 0 <= self.gpus <= 64:
            raise ClusterError(f"--gpus {self.gpus}: a node simulates 0 to 64 GPUs")
        if not 0 <= self.kwok_nodes <= 5000:
            raise ClusterError(f"--kwok {self.kwok_nodes}: 0 to 5,000 simulated nodes")


def merged(running: ClusterSettings, wanted: ClusterSettings) -> ClusterSettings | None:
    """What a running cluster becomes when it is asked for again: it gains services and loses none.

    None when it would need other nodes.
    """
    shape = ("name", "nodes", "gpus", "gpu_resource")
    if any(getattr(running, each) != getattr(wanted, each) for each in shape):
        return None
    return replace(
        wanted,
        dns=running.dns or wanted.dns,
        prometheus=running.prometheus or wanted.prometheus,
        kwok_nodes=max(running.kwok_nodes, wanted.kwok_nodes),
    )


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """One /16 per cluster, so that clusters side by side route without translation.

    x.y.0.0/24 is the wire between host, control plane and nodes, x.y.I.0/24 are the pods of node I, x.y.240.0/20 the
    Services.
    """

    subnet: IPv4Network

    @property
    def host(self) -> IPv4Address:
        return self.subnet[1]

    @property
    def control_plane(self) -> IPv4Address:
        return self.subnet[2]

    @property
    def wire_prefix(self) -> int:
        return 24

    @property
    def services(self) -> IPv4Network:
        return IPv4Network((int(self.subnet[240 * 256]), 20))

    @property
    def api_service(self) -> IPv4Address:
        return self.services[1]

    @property
    def dns_service(self) -> IPv4Address:
        return self.services[10]

    def node(self, index: int) -> IPv4Address:
        return self.subnet[10 + index]

    def pods(self, index: int) -> IPv4Network:
        return IPv4Network((int(self.subnet[index * 256]), 24))


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """What `up` decided, kept in the cluster's folder for every later command."""

    settings: ClusterSettings
    network: NetworkPlan

    def save(self, path: Path) -> None:
        temporary = path.with_suffix(".new")
        temporary.write_text(
            json.dumps({"settings": asdict(self.settings), "subnet": str(self.network.subnet)}, indent=1)
        )
        temporary.rename(path)

    @classmethod
    def load(cls, path: Path) -> ClusterLayout:
        content = json.loads(path.read_text())
        settings = ClusterSettings(**content["settings"])
        return cls(settings, NetworkPlan(ipaddress.IPv4Network(content["subnet"])))

    def node_name(self, index: int) -> str:
        return f"{self.settings.name}-{index}"

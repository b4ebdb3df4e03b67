"""One node: containerd, kubelet and kube-proxy in a sandbox of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.certificates import KeyPair
from tidewheel.cli.cluster.cgroups import create_group, group_name
from tidewheel.cli.cluster.container_runtime import SOCKET, ContainerRuntime
from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.cli.cluster.processes import Launch, ProcessTable
from tidewheel.cli.cluster.sandboxes import node_sandbox
from tidewheel.cli.cluster.settings import ClusterLayout


def kubelet(index: int) -> str:
    return f"kubelet-{index}"


def kube_proxy(index: int) -> str:
    return f"kube-proxy-{index}"


@dataclass(frozen=True, slots=True)
class Node:
    """What runs on node `index` once its sandbox is open and wired."""

    index: int
    folder: Path
    layout: ClusterLayout
    binaries: Binaries
    processes: ProcessTable
    runtime: ContainerRuntime

    @property
    def name(self) -> str:
        return self.layout.node_name(self.index)

    def start_kubelet(self, plane: ControlPlane) -> None:
        address = str(self.layout.network.node(self.index))
        user, groups = f"system:node:{self.name}", ["system:nodes"]
        identity = plane.authority.issue(self.name, user=user, groups=groups, hosts=[self.name, address])
        client = plane.kubeconfig_for(self.name, user=user, groups=groups)
        group = group_name(self.layout.settings.name, self.index)
        create_group(group)
        resolver = self.folder / "resolv.conf"
        resolver.write_text("")  # the host's resolver is out of the pods' reach
        config = render_kubelet(
            self.layout, cgroup=group, identity=identity, authority=plane.authority.files.certificate, resolver=resolver
        )
        labels = f"tidewheel.dev/pool=default,topology.kubernetes.io/zone=local-{self.index}"
        arguments = [
            f"--kubeconfig={client}",
            f"--hostname-override={self.name}",
            f"--node-ip={address}",
            f"--node-labels={labels}",
        ]
        self._start(kubelet(self.index), "kubelet", config, arguments)

    def start_proxy(self, plane: ControlPlane) -> None:
        client = plane.kubeconfig_for("kube-proxy", user="system:kube-proxy")
        config = render_proxy(self.layout, index=self.index, client=client)
        self._start(kube_proxy(self.index), "kube-proxy", config, [f"--hostname-override={self.name}"])

    def _start(self, name: str, program: str, config: Mapping[str, object], arguments: list[str]) -> None:
        file = self.folder / f"{program}.yaml"
        file.write_text(yaml.safe_dump(dict(config)))
        command = [str(self.binaries.path(program)), f"--config={file}", *arguments]
        self.processes.start(Launch(name, command, inside=node_sandbox(self.index)))


def render_kubelet(
    layout: ClusterLayout, *, cgroup: str, identity: KeyPair, authority: Path, resolver: Path
) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "tlsCertFile": str(identity.certificate),
        "tlsPrivateKeyFile": str(identity.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        # A developer's disk is fuller than a server's; it is not for the kubelet to evict pods for it.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "clusterDNS": [str(layout.network.dns_service)],
        "clusterDomain": "cluster.local",
        "resolvConf": str(resolver),
        "nodeStatusUpdateFrequency": "1s",
        "nodeLeaseDurationSeconds": 10,
        "maxPods": 250,
        "registerNode": True,
        "serializeImagePulls": False,
        "shutdownGracePeriod": "0s",
        "logging": {"verbosity": 1},
    }


def render_proxy(layout: ClusterLayout, *, index: int, client: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(client)},
        # Who is not a pod of this node (the host, Prometheus) and asks it for a Service must get the answer through it,
        # as only it knows the translation: such callers are masqueraded.
        "clusterCIDR": str(layout.network.pods(index)),
        "detectLocalMode": "ClusterCIDR",
        # Zero leaves the kernel's limits alone; they belong to the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "0s", "syncPeriod": "30s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }

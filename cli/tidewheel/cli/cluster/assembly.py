"""Put the parts of a cluster together, in the order in which the first pod needs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.container_runtime import ContainerRuntime, containerd
from tidewheel.cli.cluster.control_plane import API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER, ControlPlane, Endpoints
from tidewheel.cli.cluster.dns import start_dns
from tidewheel.cli.cluster.errors import ComponentError
from tidewheel.cli.cluster.folders import ClusterFolder
from tidewheel.cli.cluster.gpus import start_gpus
from tidewheel.cli.cluster.host_mounts import HostMount, host_mounts
from tidewheel.cli.cluster.kwok import start_kwok
from tidewheel.cli.cluster.local_images import PROGRAMS, pause_image, program_image, redis_image
from tidewheel.cli.cluster.network import Network
from tidewheel.cli.cluster.node import Node, kubelet
from tidewheel.cli.cluster.processes import ProcessTable
from tidewheel.cli.cluster.prometheus import start_prometheus
from tidewheel.cli.cluster.sandboxes import CONTROL_PLANE, Sandboxes, node_sandbox
from tidewheel.cli.cluster.settings import ClusterLayout
from tidewheel.cli.cluster.waiting import wait_until


class Assembly:
    """The parts of the cluster that a layout describes, running or not."""

    def __init__(
        self, layout: ClusterLayout, *, folder: ClusterFolder, binaries: Binaries, processes: ProcessTable
    ) -> None:
        self.layout = layout
        self._folder = folder.root
        self.binaries = binaries
        self.processes = processes
        self.sandboxes = Sandboxes(processes, init=binaries.path("pause"), folder=folder.root)
        self.network = Network(layout.settings.name, layout.network, self.sandboxes)
        self.plane = ControlPlane(
            folder.root,
            binaries=binaries,
            endpoints=Endpoints.in_sandbox(layout.network),
            processes=processes,
            sandbox=CONTROL_PLANE,
        )
        self.nodes = {index: self._node(index, folder) for index in range(1, layout.settings.nodes + 1)}

    def start(self, report: Callable[[str], None]) -> None:
        """Start what is not running, and return when the nodes take pods. `report` is told what is waited for."""
        report("etcd and API server")
        self.sandboxes.open(CONTROL_PLANE, self.network.connect_control_plane)
        self.plane.launch([ETCD, API_SERVER])
        with ThreadPoolExecutor(max_workers=1) as beside:
            runtimes = beside.submit(self._start_runtimes)  # while the API server starts
            self.plane.write_admin_kubeconfig()
            self.plane.await_ready(self._timeout)
            self.plane.launch([CONTROLLER_MANAGER, SCHEDULER])
            report("container runtime and images")
            runtimes.result()
        for index in self.nodes:
            self._start_kubelet(index)
        report("nodes")
        self.await_nodes()

    def start_node(self, index: int) -> None:
        """Start one node that was powered off."""
        self._start_runtime(index, host_mounts())
        self._start_kubelet(index)
        self.await_nodes()

    def start_dns(self) -> None:
        start_dns(
            self.layout.network,
            folder=self._folder,
            binaries=self.binaries,
            plane=self.plane,
            processes=self.processes,
            timeout_seconds=self._timeout,
        )

    def start_prometheus(self) -> None:
        start_prometheus(
            self.layout.network,
            self.layout.settings,
            folder=self._folder,
            binaries=self.binaries,
            plane=self.plane,
            processes=self.processes,
        )

    def start_kwok(self, count: int) -> None:
        start_kwok(
            count,
            settings=self.layout.settings,
            binaries=self.binaries,
            plane=self.plane,
            processes=self.processes,
        )

    def await_nodes(self) -> None:
        """Every node is Ready, offers its GPUs and is free of taints; pods may be created in `default`."""
        wait_until(
            lambda: not self.unready_nodes(),
            what=f"readiness of {', '.join(node.name for node in self.nodes.values())}",
            timeout_seconds=self._timeout,
            poll_seconds=0.1,
            failed=self._failure,
        )
        self.plane.kubectl("wait", "--for=create", "serviceaccount/default", f"--timeout={self._timeout:.0f}s")

    def unready_nodes(self) -> list[str]:
        listed = json.loads(self.plane.kubectl("get", "nodes", "--output=json"))["items"]
        found = {node["metadata"]["name"]: node for node in listed}
        names = [node.name for node in self.nodes.values()]
        return [name for name in names if name not in found or not self._takes_pods(found[name])]

    def _takes_pods(self, node: Mapping[str, Any]) -> bool:
        settings = self.layout.settings
        conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
        gpus = int(node["status"].get("allocatable", {}).get(settings.gpu_resource, 0))
        return conditions.get("Ready") == "True" and not node["spec"].get("taints") and gpus >= settings.gpus

    def _start_runtimes(self) -> None:
        mounts = host_mounts()
        for index in self.nodes:
            self._start_runtime(index, mounts)

    def _start_runtime(self, index: int, mounts: Sequence[HostMount]) -> None:
        runtime = self.nodes[index].runtime
        self.sandboxes.open(node_sandbox(index), lambda: self.network.connect_node(index))
        if self.processes.find(containerd(index)) is None:
            runtime.start(self.layout.network, mounts, timeout_seconds=self._timeout)
            programs = [*map(program_image, PROGRAMS), redis_image()]
            for image in [pause_image(self.binaries.path("pause")), *programs]:
                runtime.load(image)

    def _start_kubelet(self, index: int) -> None:
        node, settings = self.nodes[index], self.layout.settings
        node.start_kubelet(self.plane)
        node.start_proxy(self.plane)
        if settings.gpus:
            start_gpus(index, settings, folder=node.folder, processes=self.processes)

    def _failure(self) -> ComponentError | None:
        for index in self.nodes:
            for component in (containerd(index), kubelet(index)):
                if (error := self.processes.failure(component)) is not None:
                    return error
        return None

    def _node(self, index: int, folder: ClusterFolder) -> Node:
        own = folder.node(index)
        runtime = ContainerRuntime(index, folder=own, processes=self.processes, sandboxes=self.sandboxes)
        return Node(
            index=index,
            folder=own,
            layout=self.layout,
            binaries=self.binaries,
            processes=self.processes,
            runtime=runtime,
        )

    @property
    def _timeout(self) -> float:
        return self.layout.settings.ready_timeout_seconds

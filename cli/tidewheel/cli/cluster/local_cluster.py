"""A whole Kubernetes cluster as processes of this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from tidewheel.cli.cluster.assembly import Assembly
from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.cleanup import process_table, remove_leftovers
from tidewheel.cli.cluster.errors import CollisionError, NotRunningError, ToolError
from tidewheel.cli.cluster.folders import ClusterFolder
from tidewheel.cli.cluster.go_modules import COREDNS, KUBERNETES, KWOK, PROMETHEUS
from tidewheel.cli.cluster.gpus import break_gpus
from tidewheel.cli.cluster.host_mounts import host_mounts
from tidewheel.cli.cluster.locks import locked
from tidewheel.cli.cluster.network import plan_network
from tidewheel.cli.cluster.prebuilt import find_helm
from tidewheel.cli.cluster.preflight import check_collisions, check_readable, check_root, install_packages
from tidewheel.cli.cluster.procfs import end
from tidewheel.cli.cluster.progress import ConsoleProgress, Progress
from tidewheel.cli.cluster.prometheus import prometheus_url
from tidewheel.cli.cluster.sandboxes import CONTROL_PLANE, node_sandbox
from tidewheel.cli.cluster.settings import ClusterLayout, ClusterSettings, merged
from tidewheel.cli.cluster.shell import run
from tidewheel.cli.cluster.status import ClusterStatus, component_statuses


class LocalCluster:
    """Use as a context manager for a cluster that lasts as long as a block, or call `up` and `down`.

    Components are known by name: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, coredns, prometheus and
    kwok; per node I: containerd-I, kubelet-I, kube-proxy-I, gpus-I. `stop` and `start` take these names.
    """

    def __init__(self, settings: ClusterSettings, progress: Progress | None = None) -> None:
        self.settings = settings
        self.folder = ClusterFolder.of(settings.name)
        self.progress: Progress = progress or ConsoleProgress()
        self.binaries = Binaries(self.progress)
        self.processes = process_table(self.folder)

    def __enter__(self) -> LocalCluster:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def kubeconfig(self) -> Path:
        return self.folder.kubeconfig

    @property
    def assembly(self) -> Assembly:
        """The parts of the running cluster; NotRunningError when there is none of this name."""
        try:
            layout = ClusterLayout.load(self.folder.layout)
        except FileNotFoundError as error:
            name = self.settings.name
            raise NotRunningError(f"no cluster {name!r}: start it with `tidewheel cluster up --name {name}`") from error
        return self._assemble(layout)

    def up(self) -> None:
        """Start it. A running cluster of this name is repaired; what an interrupted `up` left is removed first."""
        check_root()
        check_readable(host_mounts())
        install_packages(self.progress)
        self.binaries.ensure(KUBERNETES, [*KUBERNETES.packages])
        with self._locked():
            if self.folder.recorded_provider() is not None:  # an `up` came to its end
                self._repair()
                return
            if self.folder.root.exists():
                with self.progress.stage(f"removing what is left of cluster {self.settings.name}", usually_seconds=2):
                    remove_leftovers(self.folder)
            check_collisions(self.folder)
            self._start_anew()

    def down(self) -> None:
        """End it and remove everything of it, whatever state it is in."""
        check_root()
        with self._locked():
            remove_leftovers(self.folder)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 60) -> str:
        return self.assembly.plane.kubectl(*arguments, stdin=stdin, timeout_seconds=timeout_seconds)

    def helm(self, *arguments: str, timeout_seconds: float = 300) -> str:
        return run(
            [str(find_helm(self.progress)), f"--kubeconfig={self.kubeconfig}", *arguments],
            timeout_seconds=timeout_seconds,
        )

    def load_image(self, archive: Path) -> None:
        """Make an image archive (as `docker save` writes it) available on every node."""
        for node in self.assembly.nodes.values():
            node.runtime.load_archive(archive)

    def add_simulated_nodes(self, count: int) -> None:
        """Further nodes `NAME-kwok-I` (tainted) whose pods have phases and addresses but no processes."""
        self.binaries.ensure(KWOK, KWOK.products)
        with self.progress.stage(f"starting {count} simulated nodes", usually_seconds=3):
            self.assembly.start_kwok(count)

    def stop(self, component: str, *, sig: signal.Signals = signal.SIGTERM) -> None:
        """End one component by name."""
        self.processes.stop(component, sig=sig)

    def start(self, component: str) -> None:
        """Start a component again that was stopped or killed."""
        self.processes.restart(component)

    def signal(self, component: str, sig: signal.Signals) -> None:
        """Send a signal and return at once: SIGSTOP freezes a component, SIGCONT lets it go on."""
        self.processes.signal(component, sig)

    def cut(self, node: int) -> None:
        """Unplug a node's cable: it goes on running, and nothing reaches it."""
        self.assembly.network.cut(node)

    def reconnect(self, node: int) -> None:
        self.assembly.network.reconnect(node)

    def power_off(self, node: int) -> None:
        """End a node with everything on it, as a power failure would."""
        self.processes.stop(node_sandbox(node), sig=signal.SIGKILL)

    def power_on(self, node: int) -> None:
        """Start a node that was powered off; return when it takes pods."""
        self.assembly.start_node(node)

    def break_gpus(self, node: int, ids: Iterable[str]) -> None:
        """Let exactly these of a node's GPUs (`gpu-0`, ...) be unhealthy from now on."""
        break_gpus(self.folder.node(node), ids)

    def _start_anew(self) -> None:
        self.folder.create()
        layout = ClusterLayout(self.settings, plan_network(self.settings.name))
        layout.save(self.folder.layout)
        self._start(layout)
        self.folder.record_provider("local")

    def _repair(self) -> None:
        """Start again what has ended, with its data, and what is asked for in addition."""
        layout = self.assembly.layout
        settings = merged(layout.settings, self.settings)
        if settings is None:
            raise CollisionError(
                f"cluster {self.settings.name!r} has {layout.settings.nodes} nodes with {layout.settings.gpus} GPUs "
                "each: take it down first to change that, or choose another --name"
            )
        layout = ClusterLayout(settings, layout.network)
        layout.save(self.folder.layout)
        if self.processes.find(CONTROL_PLANE) is None:  # all cables hung on it
            end([*self.processes.recorded(), *self.processes.marked()], sig=signal.SIGKILL, timeout_seconds=10)
        self._start(layout)
        for component in self.processes.names():
            self.processes.restart(component)

    def _start(self, layout: ClusterLayout) -> None:
        assembly = self._assemble(layout)
        with self.progress.stage(f"starting cluster {self.settings.name}", usually_seconds=9) as stage:
            assembly.start(stage.update)
        self._start_services(assembly)

    def status(self) -> ClusterStatus:
        """What runs; `problem` names what does not."""
        assembly = self.assembly
        components = component_statuses(self.processes)
        ended = [component.name for component in components if component.pid is None]
        nodes, problem = "", f"ended: {', '.join(ended)}; `tidewheel cluster up` starts them again" if ended else None
        try:
            nodes = self.kubectl("get", "nodes", "--no-headers", "--request-timeout=5s")
        except ToolError as error:
            problem = problem or str(error)
        if problem is None and self.folder.recorded_provider() is None:
            problem = "its `up` was interrupted; `tidewheel cluster up` starts anew"
        with_prometheus = PROMETHEUS.name in self.processes.names()
        return ClusterStatus(
            name=self.settings.name,
            provider="local",
            kubeconfig=self.kubeconfig,
            api=assembly.plane.url,
            prometheus=prometheus_url(assembly.layout.network) if with_prometheus else None,
            components=components,
            nodes=nodes.splitlines(),
            problem=problem,
        )

    def _start_services(self, assembly: Assembly) -> None:
        """What pods can start without. On a first run each is built here, when the cluster already works."""
        settings = assembly.layout.settings
        if settings.dns:
            self.binaries.ensure(COREDNS, ["coredns"])
            with self.progress.stage("starting CoreDNS", usually_seconds=1):
                assembly.start_dns()
        if settings.prometheus:
            self.binaries.ensure(PROMETHEUS, ["prometheus"])
            with self.progress.stage("starting Prometheus", usually_seconds=1):
                assembly.start_prometheus()
        if settings.kwok_nodes:
            self.add_simulated_nodes(settings.kwok_nodes)

    def _assemble(self, layout: ClusterLayout) -> Assembly:
        return Assembly(layout, folder=self.folder, binaries=self.binaries, processes=self.processes)

    def _locked(self) -> AbstractContextManager[None]:
        """One `up` or `down` of a name at a time."""
        return locked(
            self.folder.root.with_name(f".{self.folder.name}.lock"),
            busy=f"cluster {self.folder.name!r} is being started or stopped by another process; try again after it",
        )

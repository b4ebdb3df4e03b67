"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes of this host.

Alone, on loopback and without root, it is what component tests run against; with nodes it is a cluster.
"""

from __future__ import annotations

import signal
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tidewheel.cli.cluster.addresses import free_ports
from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.certificates import CertificateAuthority, KeyPair
from tidewheel.cli.cluster.go_modules import KUBERNETES
from tidewheel.cli.cluster.kubeconfig import write_kubeconfig
from tidewheel.cli.cluster.processes import Launch, ProcessTable
from tidewheel.cli.cluster.procfs import end
from tidewheel.cli.cluster.settings import NetworkPlan
from tidewheel.cli.cluster.shell import run
from tidewheel.cli.cluster.waiting import wait_until

ETCD, API_SERVER = "etcd", "kube-apiserver"
CONTROLLER_MANAGER, SCHEDULER = "kube-controller-manager", "kube-scheduler"
# A documentation address (RFC 5737): an API server on loopback must advertise something, and nobody connects to it.
_NOWHERE = "192.0.2.1"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the control plane listens. `advertised` is what pods are told; `service_range` is their virtual network."""

    host: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    controller_manager_port: int
    scheduler_port: int
    service_range: str = "10.96.0.0/16"
    service_address: str = "10.96.0.1"
    advertised: str = _NOWHERE

    @classmethod
    def in_sandbox(cls, plan: NetworkPlan) -> Endpoints:
        """Well-known ports, as nobody else is there."""
        return cls(
            host=str(plan.control_plane),
            api_port=6443,
            etcd_port=2379,
            etcd_peer_port=2380,
            controller_manager_port=10257,
            scheduler_port=10259,
            service_range=str(plan.services),
            service_address=str(plan.api_service),
            advertised=str(plan.control_plane),
        )

    @classmethod
    def on_loopback(cls) -> Endpoints:
        api, etcd, peer, controller_manager, scheduler = free_ports(5)
        return cls("127.0.0.1", api, etcd, peer, controller_manager, scheduler)

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.api_port}"


class ControlPlane:
    """Starts, stops and talks to one control plane whose files are below `folder`; `sandbox` is where it runs."""

    def __init__(
        self,
        folder: Path,
        *,
        binaries: Binaries,
        endpoints: Endpoints,
        processes: ProcessTable,
        sandbox: str | None = None,
    ) -> None:
        self.folder = folder
        self.endpoints = endpoints
        self.processes = processes
        self.authority = CertificateAuthority(folder / "pki")
        self.kubeconfig = folder / "kubeconfig"
        self._binaries = binaries
        self._sandbox = sandbox

    @property
    def url(self) -> str:
        return self.endpoints.url

    def start(self, components: Sequence[str] = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER)) -> None:
        """Start what is named, in that order, and wait until the API server answers."""
        self._binaries.ensure(KUBERNETES, [*components, "kubectl"])
        self.write_admin_kubeconfig()
        self.launch(components)
        self.await_ready()

    def write_admin_kubeconfig(self) -> Path:
        return self.kubeconfig_for("admin", user="kubernetes-admin", groups=["system:masters"], path=self.kubeconfig)

    def launch(self, components: Sequence[str]) -> None:
        """Start what is named without waiting: the clients among them try again until the API server answers."""
        launches = {
            ETCD: self._etcd,
            API_SERVER: self._api_server,
            CONTROLLER_MANAGER: self._controller_manager,
            SCHEDULER: self._scheduler,
        }
        for component in components:
            self.processes.start(launches[component]())

    def await_ready(self, timeout_seconds: float = 60) -> None:
        """Return when the API server reports ready, start-up hooks (RBAC bootstrap) included."""
        wait_until(
            self.is_ready,
            what="readiness of kube-apiserver",
            timeout_seconds=timeout_seconds,
            failed=lambda: self.processes.failure(ETCD) or self.processes.failure(API_SERVER),
        )

    def is_ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.authority.files.certificate))
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kubeconfig_for(self, name: str, *, user: str, groups: Sequence[str] = (), path: Path | None = None) -> Path:
        """A kubeconfig for some other identity, to try what its RBAC rights allow."""
        client = self.authority.issue(name, user=user, groups=groups)
        path = path or self.folder / "pki" / f"{name}.kubeconfig"
        return write_kubeconfig(
            path, server=self.url, authority=self.authority.files.certificate, client=client, context=self.folder.name
        )

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 60) -> str:
        """Run kubectl as the administrator; raise ToolError with its words when it fails."""
        command = [str(self._binaries.path("kubectl")), f"--kubeconfig={self.kubeconfig}", *arguments]
        return run(command, stdin=stdin, timeout_seconds=timeout_seconds)

    def apply(self, *objects: Mapping[str, object]) -> None:
        """Create or update objects."""
        documents = yaml.safe_dump_all([dict(each) for each in objects])
        self.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=documents)

    def stop(self, component: str, *, sig: signal.Signals = signal.SIGTERM) -> None:
        """End one component. kube-apiserver waits up to a minute for its watchers on SIGTERM: prefer SIGKILL for it."""
        self.processes.stop(component, sig=sig)

    def start_again(self, component: str) -> None:
        """Start a component that was stopped, with the same arguments and data."""
        self.processes.restart(component)
        if component in (ETCD, API_SERVER):
            self.await_ready()

    def stop_all(self) -> None:
        end([*self.processes.recorded(), *self.processes.marked()], sig=signal.SIGKILL, timeout_seconds=10)

    def _etcd(self) -> Launch:
        client = f"http://127.0.0.1:{self.endpoints.etcd_port}"
        peer = f"http://127.0.0.1:{self.endpoints.etcd_peer_port}"
        arguments = [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # survives the death of any process; nobody keeps a local cluster through a power cut
            "--log-level=warn",
        ]
        return self._launch(ETCD, arguments)

    def _api_server(self) -> Launch:
        at = self.endpoints
        hosts = [
            at.host,
            "127.0.0.1",
            at.service_address,
            at.advertised,
            "localhost",
            "kubernetes",
            "kubernetes.default",
        ]
        hosts += ["kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        serving = self.authority.issue("kube-apiserver", user="kube-apiserver", hosts=list(dict.fromkeys(hosts)))
        kubelet = self.authority.issue("kubelet-client", user="kube-apiserver", groups=["system:masters"])
        authority = self.authority.files.certificate
        accounts = self.authority.service_account_keys()
        arguments = [
            f"--etcd-servers=http://127.0.0.1:{at.etcd_port}",
            f"--bind-address={at.host}",
            f"--secure-port={at.api_port}",
            f"--advertise-address={at.advertised}",
            *(["--endpoint-reconciler-type=none"] if at.advertised == _NOWHERE else []),
            *_serving(serving),
            f"--client-ca-file={authority}",
            f"--kubelet-certificate-authority={authority}",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            "--kubelet-preferred-address-types=InternalIP",  # node names resolve nowhere
            f"--service-account-key-file={accounts.certificate}",
            f"--service-account-signing-key-file={accounts.key}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-cluster-ip-range={at.service_range}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--event-ttl=1h",
            "--profiling=false",
        ]
        return self._launch(API_SERVER, arguments)

    def _controller_manager(self) -> Launch:
        serving = self.authority.issue(CONTROLLER_MANAGER, user=f"system:{CONTROLLER_MANAGER}", hosts=["127.0.0.1"])
        authority = self.authority.files
        arguments = [
            *self._client_flags(CONTROLLER_MANAGER),
            *_serving(serving),
            f"--secure-port={self.endpoints.controller_manager_port}",
            f"--root-ca-file={authority.certificate}",
            f"--cluster-signing-cert-file={authority.certificate}",
            f"--cluster-signing-key-file={authority.key}",
            f"--service-account-private-key-file={self.authority.service_account_keys().key}",
            f"--service-cluster-ip-range={self.endpoints.service_range}",
            "--use-service-account-credentials=true",
            # A node that vanished is noticed in seconds, so that tests of it need not wait for a minute.
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=20s",
        ]
        return self._launch(CONTROLLER_MANAGER, arguments)

    def _scheduler(self) -> Launch:
        serving = self.authority.issue(SCHEDULER, user=f"system:{SCHEDULER}", hosts=["127.0.0.1"])
        arguments = [
            *self._client_flags(SCHEDULER),
            *_serving(serving),
            f"--secure-port={self.endpoints.scheduler_port}",
        ]
        return self._launch(SCHEDULER, arguments)

    def _client_flags(self, component: str) -> list[str]:
        config = self.kubeconfig_for(f"{component}-client", user=f"system:{component}")
        return [
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--profiling=false",
        ]

    def _launch(self, component: str, arguments: Sequence[str]) -> Launch:
        return Launch(component, [str(self._binaries.path(component)), *arguments], inside=self._sandbox)


def _serving(pair: KeyPair) -> list[str]:
    return [f"--tls-cert-file={pair.certificate}", f"--tls-private-key-file={pair.key}"]

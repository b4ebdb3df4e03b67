"""CoreDNS beside the control plane, and the Service by which pods find it."""

from __future__ import annotations

from pathlib import Path

from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.cli.cluster.processes import Launch, ProcessTable
from tidewheel.cli.cluster.rbac import grant
from tidewheel.cli.cluster.sandboxes import CONTROL_PLANE
from tidewheel.cli.cluster.settings import NetworkPlan
from tidewheel.cli.cluster.waiting import answers_http, wait_until

COREDNS = "coredns"
_USER = "system:coredns"
_READY_PORT = 8181


def start_dns(
    plan: NetworkPlan,
    *,
    folder: Path,
    binaries: Binaries,
    plane: ControlPlane,
    processes: ProcessTable,
    timeout_seconds: float,
) -> None:
    """Start it and wait until it has read the cluster's Services."""
    program = str(binaries.path(COREDNS))
    config = folder / "Corefile"
    config.write_text(render_corefile(plan, plane.kubeconfig_for(COREDNS, user=_USER)))
    plane.apply(*render_objects(plan))
    processes.start(Launch(COREDNS, [program, f"-conf={config}"], inside=CONTROL_PLANE))
    wait_until(
        lambda: answers_http(f"http://{plan.control_plane}:{_READY_PORT}/ready"),
        what="readiness of CoreDNS",
        timeout_seconds=timeout_seconds,
        failed=lambda: processes.failure(COREDNS),
    )


def render_corefile(plan: NetworkPlan, kubeconfig: Path) -> str:
    """Names of the cluster only: a name of the outside world is refused at once instead of timing out."""
    return f"""\
.:53 {{
    bind {plan.control_plane}
    errors
    ready {plan.control_plane}:{_READY_PORT}
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 5
    }}
    cache 5
}}
"""


def render_objects(plan: NetworkPlan) -> list[dict[str, object]]:
    ports = [{"name": protocol.lower(), "protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    place = {"name": "kube-dns", "namespace": "kube-system"}
    service: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": place,
        "spec": {"clusterIP": str(plan.dns_service), "ports": ports},
    }
    endpoints: dict[str, object] = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**place, "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [str(plan.control_plane)]}],
        "ports": ports,
    }
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    return [service, endpoints, *grant(_USER, rules)]

"""A real Prometheus beside the control plane, which finds Tidewheel's pods by Kubernetes discovery."""

from __future__ import annotations

from pathlib import Path

import yaml

from tidewheel.cli.cluster.binaries import Binaries
from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.cli.cluster.processes import Launch, ProcessTable
from tidewheel.cli.cluster.rbac import grant
from tidewheel.cli.cluster.sandboxes import CONTROL_PLANE
from tidewheel.cli.cluster.settings import ClusterSettings, NetworkPlan
from tidewheel.cli.cluster.waiting import answers_http, wait_until

PROMETHEUS = "prometheus"
_USER = "system:prometheus"
_PORT = 9090
_ENGINES = "app_kubernetes_io_managed_by"
_PROGRAMS = "app_kubernetes_io_name"


def prometheus_url(plan: NetworkPlan) -> str:
    """Reachable from this host and from pods."""
    return f"http://{plan.control_plane}:{_PORT}"


def start_prometheus(
    plan: NetworkPlan,
    settings: ClusterSettings,
    *,
    folder: Path,
    binaries: Binaries,
    plane: ControlPlane,
    processes: ProcessTable,
) -> None:
    program = str(binaries.path(PROMETHEUS))
    config = folder / "prometheus.yml"
    kubeconfig = plane.kubeconfig_for(PROMETHEUS, user=_USER)
    config.write_text(yaml.safe_dump(render_config(kubeconfig, settings.scrape_interval_seconds), sort_keys=False))
    plane.apply(*grant(_USER, [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]))
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={plan.control_plane}:{_PORT}",
        "--web.enable-lifecycle",
        "--log.level=warn",
    ]
    processes.start(Launch(PROMETHEUS, [program, *arguments], inside=CONTROL_PLANE))
    wait_until(
        lambda: answers_http(f"{prometheus_url(plan)}/-/ready"),
        what="readiness of Prometheus",
        timeout_seconds=settings.ready_timeout_seconds,
        failed=lambda: processes.failure(PROMETHEUS),
    )


def render_config(kubeconfig: Path, scrape_interval_seconds: float) -> dict[str, object]:
    interval = f"{scrape_interval_seconds * 1000:.0f}ms"
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "scrape_configs": [
            _pods_job("engines", kubeconfig, label=_ENGINES, ports="http"),
            # `admin` is the gateway's port, `metrics` the operator's.
            _pods_job("tidewheel", kubeconfig, label=_PROGRAMS, ports="admin|metrics"),
        ],
    }


def _pods_job(name: str, kubeconfig: Path, *, label: str, ports: str) -> dict[str, object]:
    keep = [
        {"source_labels": [f"__meta_kubernetes_pod_label_{label}"], "regex": "tidewheel", "action": "keep"},
        {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": ports, "action": "keep"},
        {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Running", "action": "keep"},
    ]
    # With honor_labels the gateway's own `namespace`, `model` and `version` stay; these say where a sample is from.
    describe = [
        {"source_labels": [f"__meta_kubernetes_{meta}"], "target_label": target}
        for meta, target in {"namespace": "namespace", "pod_name": "pod", "pod_node_name": "node"}.items()
    ]
    return {
        "job_name": name,
        "honor_labels": True,
        "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(kubeconfig)}],
        "relabel_configs": [*keep, *describe, *_engine_labels()],
    }


def _engine_labels() -> list[dict[str, object]]:
    """An engine does not know which version it is; its pod's labels do."""
    return [
        {"source_labels": [f"__meta_kubernetes_pod_label_tidewheel_dev_{each}"], "target_label": each}
        for each in ("model", "version")
    ]

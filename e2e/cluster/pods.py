"""Small pods for tests of the cluster itself."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tidewheel.cli.cluster.providers import Cluster
from tidewheel.cli.cluster.waiting import wait_until


def create(
    cluster: Cluster,
    namespace: str,
    name: str,
    *command: str,
    image: str = "tidewheel-engine:dev",
    gpus: int = 0,
    labels: Mapping[str, str] | None = None,
    ports: Mapping[str, int] | None = None,
    **spec: object,
) -> None:
    """A pod as unprivileged as the chart makes them; without a command it runs what its image says."""
    container = {
        "name": "main",
        "image": image,
        **({"command": list(command)} if command else {}),
        "ports": [{"name": port, "containerPort": number} for port, number in (ports or {}).items()],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}},
        # Not at /tmp: a checkout may lie there, and pods run its code.
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "env": [{"name": "TMPDIR", "value": "/scratch"}],
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    body = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        **spec,
    }
    metadata = {"name": name, "labels": {"app": name, **(labels or {})}}
    manifest = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body})
    cluster.kubectl("apply", f"--namespace={namespace}", "--filename=-", stdin=manifest)


def output_of(cluster: Cluster, namespace: str, code: str, **spec: object) -> str:
    """What a Python program prints in a pod; its own words when it fails."""
    create(cluster, namespace, "once", "python", "-c", code, **spec)  # type: ignore[arg-type]
    wait_until(
        lambda: field(cluster, namespace, "once", "status.phase") in ("Succeeded", "Failed"),
        what="end of the pod",
        timeout_seconds=120,
        poll_seconds=0.2,
    )
    printed = cluster.kubectl("logs", f"--namespace={namespace}", "once").strip()
    assert field(cluster, namespace, "once", "status.phase") == "Succeeded", printed
    return printed


def field(cluster: Cluster, namespace: str, name: str, path: str) -> str:
    return cluster.kubectl("get", "pod", f"--namespace={namespace}", name, f"--output=jsonpath={{.{path}}}")


def await_phase(cluster: Cluster, namespace: str, *names: str, phase: str = "Running") -> None:
    condition = f"--for=jsonpath={{.status.phase}}={phase}"
    pods = [f"pod/{name}" for name in names]
    cluster.kubectl("wait", f"--namespace={namespace}", condition, "--timeout=60s", *pods, timeout_seconds=90)


def run_in(cluster: Cluster, namespace: str, name: str, *command: str) -> str:
    return cluster.kubectl("exec", f"--namespace={namespace}", name, "--", *command).strip()

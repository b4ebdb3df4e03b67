"""kill -9 of what runs in a pod: the process as the host sees it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from e2e.platform.installation import RELEASE_NAMESPACE, Installation

_LEASE = "tidewheel-operator"


def kill_container(pod: dict[str, Any]) -> None:
    """Every process of the pod's first container; the kubelet starts it again."""
    container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and container in _cgroups(entry):
            os.kill(int(entry.name), signal.SIGKILL)


def _cgroups(process: Path) -> str:
    try:
        return (process / "cgroup").read_text()
    except OSError:
        return ""


def lease_holder(installation: Installation) -> str:
    """Who leads: the name of its pod and a part that a restart changes."""
    return str(installation.get("lease", _LEASE, namespace=RELEASE_NAMESPACE)["spec"].get("holderIdentity", ""))


def leading_operator(installation: Installation) -> dict[str, Any]:
    """The pod whose operator holds the lease."""
    holder = lease_holder(installation)
    pods = installation.get("pods", "--selector=app.kubernetes.io/component=operator", namespace=RELEASE_NAMESPACE)
    return next(pod for pod in pods["items"] if holder.startswith(pod["metadata"]["name"]))

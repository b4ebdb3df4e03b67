"""What a cluster is doing, as data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidewheel.cli.cluster.processes import ProcessTable


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """`pid` is None when it has ended; memory is resident, in MiB."""

    name: str
    pid: int | None
    memory_mib: float
    log: Path


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """`nodes` are lines as `kubectl get nodes` prints them; `problem` says why the cluster is not usable."""

    name: str
    provider: str
    kubeconfig: Path
    api: str
    prometheus: str | None
    components: Sequence[ComponentStatus]
    nodes: Sequence[str]
    problem: str | None


def component_statuses(processes: ProcessTable) -> list[ComponentStatus]:
    found = [(name, processes.find(name)) for name in processes.names()]
    return [
        ComponentStatus(
            name=name,
            pid=process.pid if process else None,
            memory_mib=_resident_mib(process.pid) if process else 0.0,
            log=processes.log(name),
        )
        for name, process in found
    ]


def _resident_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

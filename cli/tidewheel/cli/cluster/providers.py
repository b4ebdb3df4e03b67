"""The kinds of cluster that demo and tests run on, behind one small interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tidewheel.cli.cluster.errors import ClusterError
from tidewheel.cli.cluster.existing_cluster import ExistingCluster
from tidewheel.cli.cluster.folders import ClusterFolder
from tidewheel.cli.cluster.kind_cluster import KindCluster
from tidewheel.cli.cluster.local_cluster import LocalCluster
from tidewheel.cli.cluster.progress import Progress
from tidewheel.cli.cluster.settings import ClusterSettings
from tidewheel.cli.cluster.status import ClusterStatus


class Cluster(Protocol):
    """What every kind can do. Stopping components, cutting nodes and breaking GPUs are the local kind's alone."""

    @property
    def kubeconfig(self) -> Path: ...

    def up(self) -> None: ...

    def down(self) -> None: ...

    def status(self) -> ClusterStatus: ...

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 60) -> str: ...

    def helm(self, *arguments: str, timeout_seconds: float = 300) -> str: ...

    def load_image(self, archive: Path) -> None: ...


LOCAL, KIND, EXISTING = "local", "kind", "existing"
_KINDS: Mapping[str, Callable[[ClusterSettings, Progress], Cluster]] = {
    LOCAL: LocalCluster,
    KIND: KindCluster,
    EXISTING: ExistingCluster,
}
PROVIDERS = tuple(_KINDS)


def open_cluster(settings: ClusterSettings, *, progress: Progress, provider: str | None = None) -> Cluster:
    """The cluster of that name; without `provider` it is of the kind that `up` recorded."""
    recorded = ClusterFolder.of(settings.name).recorded_provider()
    if provider and recorded and provider != recorded:
        raise ClusterError(
            f"cluster {settings.name!r} is of provider {recorded!r}, not {provider!r}: take it down first"
        )
    return _KINDS[provider or recorded or LOCAL](settings, progress)

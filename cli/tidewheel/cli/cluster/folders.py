"""Where a cluster keeps its files: state per cluster, binaries in a cache that all clusters share."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tidewheel.cli.cluster.errors import ClusterError

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")


def cache_folder() -> Path:
    """Holds what can be made again: binaries by version and hash."""
    return _xdg("XDG_CACHE_HOME", ".cache") / "tidewheel"


def clusters_folder() -> Path:
    """Holds one folder per cluster."""
    return _xdg("XDG_STATE_HOME", ".local/state") / "tidewheel" / "clusters"


def _xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification: a relative value is invalid and must be ignored.
    return Path(value) if value.startswith("/") else Path.home() / default


def running_names() -> list[str]:
    """Clusters that were started and not taken down."""
    folder = clusters_folder()
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.exists() else []


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The files of one cluster. The folder existing means: somebody started it and nobody finished `down`."""

    root: Path

    @classmethod
    def of(cls, name: str) -> ClusterFolder:
        """Raise ClusterError when the name cannot be a host name and a path at once."""
        if not _NAME.fullmatch(name):
            raise ClusterError(
                f"cluster name {name!r}: use 1 to 30 lower-case letters, digits and '-', such as 'tidewheel'"
            )
        return cls(clusters_folder() / name)

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def processes(self) -> Path:
        return self.root / "processes"

    @property
    def layout(self) -> Path:
        return self.root / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    def node(self, index: int) -> Path:
        return self.root / "nodes" / str(index)

    def recorded_provider(self) -> str | None:
        """The kind of cluster that `up` made of this name, if it did."""
        try:
            return self._provider.read_text().strip()
        except FileNotFoundError:
            return None

    def record_provider(self, provider: str) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self._provider.write_text(f"{provider}\n")

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def _provider(self) -> Path:
        return self.root / "provider"

    def create(self) -> None:
        for folder in (self.root, self.pki, self.logs, self.processes):
            folder.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)  # pods reach files below the node folders as other users
        self.pki.chmod(0o700)

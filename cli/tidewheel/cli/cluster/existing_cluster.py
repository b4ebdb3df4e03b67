"""A cluster somebody else runs: all that is needed is a kubeconfig. Nothing of it is created or deleted here."""

from __future__ import annotations

import os
from pathlib import Path

from tidewheel.cli.cluster.command_line_tools import CommandLineTools
from tidewheel.cli.cluster.errors import ClusterError, HostError, ToolError
from tidewheel.cli.cluster.folders import ClusterFolder
from tidewheel.cli.cluster.progress import Progress
from tidewheel.cli.cluster.settings import ClusterSettings
from tidewheel.cli.cluster.status import ClusterStatus


class ExistingCluster:
    """The cluster of $KUBECONFIG, or of ~/.kube/config."""

    def __init__(self, settings: ClusterSettings, progress: Progress) -> None:
        self.settings = settings
        self.folder = ClusterFolder.of(settings.name)
        self._tools = CommandLineTools(self.kubeconfig, progress)

    @property
    def kubeconfig(self) -> Path:
        """The first file of $KUBECONFIG."""
        return Path(os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or Path.home() / ".kube" / "config")

    def up(self) -> None:
        if not self.kubeconfig.exists():
            raise HostError(f"there is no kubeconfig at {self.kubeconfig}: set KUBECONFIG to that of your cluster")
        if problem := self.status().problem:
            raise ClusterError(f"the cluster of {self.kubeconfig} does not answer: {problem}")
        self.folder.record_provider("existing")

    def down(self) -> None:
        """Forget it; it is not ours to stop."""
        self.folder.remove()

    def status(self) -> ClusterStatus:
        nodes, problem, api = "", None, ""
        try:
            api = self.kubectl("config", "view", "--minify", "--output=jsonpath={.clusters[0].cluster.server}")
            nodes = self.kubectl("get", "nodes", "--no-headers", "--request-timeout=10s")
        except ToolError as error:
            problem = str(error)
        return ClusterStatus(
            name=self.settings.name,
            provider="existing",
            kubeconfig=self.kubeconfig,
            api=api,
            prometheus=None,
            components=[],
            nodes=nodes.splitlines(),
            problem=problem,
        )

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 60) -> str:
        return self._tools.kubectl(*arguments, stdin=stdin, timeout_seconds=timeout_seconds)

    def helm(self, *arguments: str, timeout_seconds: float = 300) -> str:
        return self._tools.helm(*arguments, timeout_seconds=timeout_seconds)

    def load_image(self, archive: Path) -> None:
        raise ClusterError(
            f"{archive} cannot be loaded into a cluster that is not ours: push it to a registry that its nodes reach"
        )

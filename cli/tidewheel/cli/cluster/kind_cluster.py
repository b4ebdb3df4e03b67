"""A cluster of `kind`, where there is Docker and a registry to pull its node image from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import yaml

from tidewheel.cli.cluster.command_line_tools import CommandLineTools
from tidewheel.cli.cluster.errors import HostError, ToolError
from tidewheel.cli.cluster.folders import ClusterFolder
from tidewheel.cli.cluster.progress import Progress
from tidewheel.cli.cluster.settings import ClusterSettings
from tidewheel.cli.cluster.shell import run
from tidewheel.cli.cluster.status import ClusterStatus

_CREATE_SECONDS = 300.0


class KindCluster:
    """Nodes are Docker containers; GPUs are an extended resource written into their status."""

    def __init__(self, settings: ClusterSettings, progress: Progress) -> None:
        self.settings = settings
        self.folder = ClusterFolder.of(settings.name)
        self._progress = progress
        self._tools = CommandLineTools(self.kubeconfig, progress)

    @property
    def kubeconfig(self) -> Path:
        return self.folder.kubeconfig

    def up(self) -> None:
        if not shutil.which("kind"):
            raise HostError("there is no `kind` on PATH: see https://kind.sigs.k8s.io, or use --provider local")
        self.folder.record_provider("kind")
        config = self.folder.root / "kind.yaml"
        config.write_text(yaml.safe_dump(render_config(self.settings)))
        with self._progress.stage(f"kind creates cluster {self.settings.name}", usually_seconds=60):
            command = ["kind", "create", "cluster", f"--name={self.settings.name}", f"--config={config}", "--wait=120s"]
            run([*command, f"--kubeconfig={self.kubeconfig}"], timeout_seconds=_CREATE_SECONDS)
        self._offer_gpus()

    def down(self) -> None:
        run(["kind", "delete", "cluster", f"--name={self.settings.name}"], timeout_seconds=_CREATE_SECONDS)
        self.folder.remove()

    def status(self) -> ClusterStatus:
        nodes, problem = "", None
        try:
            nodes = self.kubectl("get", "nodes", "--no-headers", "--request-timeout=10s")
        except ToolError as error:
            problem = str(error)
        return ClusterStatus(
            name=self.settings.name,
            provider="kind",
            kubeconfig=self.kubeconfig,
            api=f"context kind-{self.settings.name}",
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
        command = ["kind", "load", "image-archive", str(archive), f"--name={self.settings.name}"]
        run(command, timeout_seconds=_CREATE_SECONDS)

    def _offer_gpus(self) -> None:
        """A kubelet keeps resources it does not know of, until it restarts."""
        resource = self.settings.gpu_resource.replace("~", "~0").replace("/", "~1")
        patch = json.dumps([{"op": "add", "path": f"/status/capacity/{resource}", "value": str(self.settings.gpus)}])
        for node in self.kubectl("get", "nodes", "--output=name").split():
            self.kubectl("patch", node, "--subresource=status", "--type=json", f"--patch={patch}")


def render_config(settings: ClusterSettings) -> dict[str, object]:
    workers = [{"role": "worker"} for _ in range(settings.nodes - 1)]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}, *workers],
    }

"""containerd on one node: its configuration, its CNI network, the images in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tidewheel.cli.cluster.host_mounts import HostMount
from tidewheel.cli.cluster.images import Image, write_archive
from tidewheel.cli.cluster.local_images import PAUSE
from tidewheel.cli.cluster.processes import Launch, ProcessTable
from tidewheel.cli.cluster.sandboxes import Sandboxes, node_sandbox
from tidewheel.cli.cluster.settings import NetworkPlan
from tidewheel.cli.cluster.shell import run
from tidewheel.cli.cluster.waiting import listens, wait_until

SOCKET = "/run/containerd/containerd.sock"  # in the node's own /run
_UNUSED_SNAPSHOTTERS = ("aufs", "btrfs", "devmapper", "zfs")
_CNI_PLUGINS = "/usr/lib/cni"


def containerd(index: int) -> str:
    return f"containerd-{index}"


class ContainerRuntime:
    """Runs inside the sandbox of node `index`; `folder` is the node's."""

    def __init__(self, index: int, *, folder: Path, processes: ProcessTable, sandboxes: Sandboxes) -> None:
        self._index = index
        self._folder = folder
        self._processes = processes
        self._sandboxes = sandboxes

    def start(self, plan: NetworkPlan, mounts: Sequence[HostMount], *, timeout_seconds: float) -> None:
        folder = self._folder
        (folder / "cni").mkdir(parents=True, exist_ok=True)
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(render_pod_network(plan, self._index)))
        sandbox = node_sandbox(self._index)
        default_spec = json.loads(self._sandboxes.run(sandbox, "ctr", "oci", "spec"))
        (folder / "container.json").write_text(json.dumps(with_mounts(default_spec, mounts)))
        (folder / "containerd.toml").write_text(render_config(folder, self._snapshotter()))
        name = containerd(self._index)
        self._processes.start(Launch(name, ["containerd", f"--config={folder / 'containerd.toml'}"], inside=sandbox))
        wait_until(
            self.answers,
            what=f"an answer of {name}",
            timeout_seconds=timeout_seconds,
            failed=lambda: self._processes.failure(name),
        )

    def answers(self) -> bool:
        # The socket seen through the init process's root, as a stranger to its mounts would find only the host's /run.
        # A killed containerd leaves the file behind: only a connection tells that somebody listens.
        return listens(Path(f"/proc/{self._sandboxes.pid(node_sandbox(self._index))}/root{SOCKET}"))

    def load(self, image: Image) -> None:
        """Make an image available to pods of this node."""
        archive = self._folder / "image.tar"
        try:
            self.load_archive(write_archive(image, archive))
        finally:
            archive.unlink(missing_ok=True)

    def load_archive(self, archive: Path) -> None:
        """`archive` is what `docker save` or `buildah push oci-archive:` writes."""
        self.ctr("images", "import", f"--snapshotter={self._snapshotter()}", str(archive), timeout_seconds=600)

    def _snapshotter(self) -> str:
        return snapshotter_for(run(["findmnt", "--noheadings", "--output=FSTYPE", f"--target={self._folder}"]))

    def ctr(self, *arguments: str, timeout_seconds: float = 60) -> str:
        command = ["ctr", f"--address={SOCKET}", "--namespace=k8s.io", *arguments]
        return self._sandboxes.run(node_sandbox(self._index), *command, timeout_seconds=timeout_seconds)


def snapshotter_for(file_system: str) -> str:
    """An overlay cannot be stacked on an overlay, as the root of a Docker container is: there, layers are copied."""
    return "native" if file_system.strip() == "overlay" else "overlayfs"


def render_config(folder: Path, snapshotter: str) -> str:
    """containerd 1.6's TOML (version 2). Everything below the node's folder, or in its own /run."""
    return f"""\
version = 2
root = "{folder / "containerd"}"
state = "/run/containerd"
disabled_plugins = [{", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in _UNUSED_SNAPSHOTTERS)}]

[grpc]
  address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Sandboxes of CI systems often lack CAP_SYS_RESOURCE, and then a pod may not lower its own score.
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{folder / "container.json"}"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_CNI_PLUGINS}"
    conf_dir = "{folder / "cni"}"
"""


def render_pod_network(plan: NetworkPlan, index: int) -> dict[str, object]:
    """One cable per pod and routes, no bridge: all traffic passes the node's IP stack, where kube-proxy's rules are."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": str(plan.pods(index))}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}


def with_mounts(spec: dict[str, object], mounts: Sequence[HostMount]) -> dict[str, object]:
    """The default container specification plus folders of the host."""
    existing = spec["mounts"]
    assert isinstance(existing, list)
    return {**spec, "mounts": [*existing, *(mount.as_oci() for mount in mounts)]}

"""The programs a local cluster is made of, as pinned Go modules. `go.mod` and `go.sum` under `go/` are the lock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SOURCES = Path(__file__).parent / "go"


@dataclass(frozen=True, slots=True)
class GoModule:
    """`packages` maps a binary's name to what is built, `documents` a YAML file's to the module and files it joins.

    Times and sizes are of two cores and an empty cache.
    """

    name: str
    version: str
    packages: Mapping[str, str]
    usually_seconds: float
    disk_gib: float
    tags: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, tuple[str, Sequence[str]]] = field(default_factory=dict)

    @property
    def products(self) -> list[str]:
        """Everything of it that the cache holds."""
        return [*self.packages, *self.documents]

    @property
    def source(self) -> Path:
        return _SOURCES / self.name

    def key(self) -> str:
        """Folder name of its binaries in the cache; changes with anything that changes them."""
        digest = hashlib.sha256(repr((dict(self.packages), self.tags, self.link_flags())).encode())
        for document in self.documents.items():
            digest.update(repr(document).encode())
        for path in sorted(p for p in self.source.rglob("*") if p.is_file()):
            digest.update(path.relative_to(self.source).as_posix().encode() + b"\0" + path.read_bytes())
        return f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"

    def link_flags(self) -> str:
        return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in sorted(self.variables.items()))])

    def build_command(self, names: Iterable[str], output: Path) -> list[str]:
        """One `go build` for all: packages are compiled once and linked side by side."""
        tags = [f"-tags={self.tags}"] if self.tags else []
        flags = ["-trimpath", "-mod=readonly", "-v", *tags, f"-ldflags={self.link_flags()}", f"-o={output}/"]
        return ["go", "build", *flags, *(self.packages[name] for name in names)]


_KUBERNETES_VERSION = "v1.35.4"

# 1.35 is the newest minor that works with Debian's containerd 1.6; 1.36 wants containerd 2.
KUBERNETES = GoModule(
    name="kubernetes",
    version=_KUBERNETES_VERSION,
    packages={
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kubelet": "k8s.io/kubernetes/cmd/kubelet",
        "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
        "pause": "tidewheel.dev/cluster/kubernetes/pause",
    },
    usually_seconds=320,
    disk_gib=9,
    # Without these, kubectl and helm see a server without a version.
    variables={
        "k8s.io/component-base/version.gitVersion": _KUBERNETES_VERSION,
        "k8s.io/component-base/version.gitMajor": "1",
        "k8s.io/component-base/version.gitMinor": "35",
    },
)

COREDNS = GoModule(
    name="coredns",
    version="v1.15.0",
    packages={"coredns": "github.com/coredns/coredns"},
    usually_seconds=120,
    disk_gib=4,
)

PROMETHEUS = GoModule(
    name="prometheus",
    version="v0.316.0",
    packages={"prometheus": "github.com/prometheus/prometheus/cmd/prometheus"},
    usually_seconds=175,
    disk_gib=5,
    tags="remove_all_sd,enable_kubernetes_sd",
)

KWOK = GoModule(
    name="kwok",
    version="v0.8.0",
    packages={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    usually_seconds=80,
    disk_gib=3,
    # How simulated nodes and pods go from one phase to the next.
    documents={
        "stages.yaml": (
            "sigs.k8s.io/kwok",
            [
                "kustomize/stage/node/fast/node-initialize.yaml",
                "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
                "kustomize/stage/pod/fast/pod-ready.yaml",
                "kustomize/stage/pod/fast/pod-complete.yaml",
                "kustomize/stage/pod/fast/pod-delete.yaml",
            ],
        )
    },
)

MODULES = (KUBERNETES, COREDNS, PROMETHEUS, KWOK)

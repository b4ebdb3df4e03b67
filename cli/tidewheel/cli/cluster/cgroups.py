"""The control groups of a node: a parent of its own, so that its pods' groups can be told from everybody else's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tidewheel.cli.cluster.errors import HostError

_ROOT = Path("/sys/fs/cgroup")
_UNIFIED_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")


def group_name(cluster: str, index: int) -> str:
    return f"tidewheel-{cluster}-{index}"


def create_group(name: str) -> None:
    """In every hierarchy (version 1), or once with all controllers handed down (version 2)."""
    if (_ROOT / "cgroup.controllers").exists():
        _create_unified(_ROOT / name)
        return
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        # A cpuset without processors and memory takes no process.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (group / file).exists():
                (group / file).write_text((hierarchy / file).read_text())


def remove_groups(cluster: str) -> None:
    """Remove the groups of all nodes of a cluster; the kernel refuses while a process is in one."""
    for hierarchy in [_ROOT, *_hierarchies()]:
        for group in hierarchy.glob(f"tidewheel-{cluster}-[1-9]"):
            for inner in sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True):
                with contextlib.suppress(FileNotFoundError):
                    inner.rmdir()
            with contextlib.suppress(FileNotFoundError):
                group.rmdir()


def leftover_groups(cluster: str) -> list[Path]:
    return [group for hierarchy in [_ROOT, *_hierarchies()] for group in hierarchy.glob(f"tidewheel-{cluster}-[1-9]")]


def _create_unified(group: Path) -> None:
    group.mkdir(exist_ok=True)
    for parent in (_ROOT, group):
        available = (parent / "cgroup.controllers").read_text().split()
        handed_down = (parent / "cgroup.subtree_control").read_text().split()
        missing = [each for each in _UNIFIED_CONTROLLERS if each in available and each not in handed_down]
        try:
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in missing))
        except OSError as error:
            raise HostError(
                f"{parent} does not hand down the controllers {', '.join(missing)} ({error.strerror}): "
                "in a container, give it a control group namespace of its own, or use --provider kind or existing"
            ) from error


def _hierarchies() -> Iterator[Path]:
    seen: set[Path] = set()
    for entry in sorted(_ROOT.iterdir()):
        real = entry.resolve()  # cpu and cpuacct are often links to one hierarchy
        if real.is_dir() and (real / "cgroup.procs").exists() and real not in seen:
            seen.add(real)
            yield real

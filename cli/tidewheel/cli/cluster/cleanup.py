"""Remove all that a cluster left on this machine, whatever state it is in, and nothing of anybody else's.

What is ours is known by name alone (the cluster's folder, the mark in the environment of its processes, its control
groups, its cable), so it works without any record and after any crash.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidewheel.cli.cluster.cgroups import leftover_groups, remove_groups
from tidewheel.cli.cluster.errors import ClusterError, ToolError
from tidewheel.cli.cluster.folders import ClusterFolder, running_names
from tidewheel.cli.cluster.network import host_link
from tidewheel.cli.cluster.processes import ProcessTable
from tidewheel.cli.cluster.procfs import ProcessId, end, is_running
from tidewheel.cli.cluster.shell import run
from tidewheel.cli.cluster.waiting import wait_until

_LINKS = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What still exists of a cluster."""

    processes: Sequence[ProcessId]
    mounts: Sequence[str]
    links: Sequence[str]
    groups: Sequence[Path]
    folder: Path | None

    def __bool__(self) -> bool:
        return bool(self.processes or self.mounts or self.links or self.groups or self.folder)


def process_table(folder: ClusterFolder) -> ProcessTable:
    return ProcessTable(records=folder.processes, logs=folder.logs, mark=str(folder.root))


def find_leftovers(folder: ClusterFolder) -> Leftovers:
    link = host_link(folder.name)
    mounts = Path("/proc/self/mountinfo").read_text()
    return Leftovers(
        processes=process_table(folder).marked(),
        mounts=mounts_below(folder.root, mounts),
        links=[link] if (_LINKS / link).exists() else [],
        groups=leftover_groups(folder.name),
        folder=folder.root if folder.root.exists() else None,
    )


def remove_leftovers(folder: ClusterFolder, *, timeout_seconds: float = 30) -> None:
    """Leave nothing behind; raise ClusterError with what could not be removed."""
    processes = process_table(folder)
    # The init processes take everything inside their sandboxes along; the kernel is done when they are gone.
    while running := {*processes.recorded(), *processes.marked()}:
        end(running, sig=signal.SIGKILL, timeout_seconds=timeout_seconds)
    for mount in find_leftovers(folder).mounts:
        run(["umount", "--lazy", mount])
    link = host_link(folder.name)
    if (_LINKS / link).exists():
        _remove_link(link, timeout_seconds)
    wait_until(
        lambda: _try_remove_groups(folder.name),
        what=f"removal of the control groups of cluster {folder.name}",
        timeout_seconds=timeout_seconds,
    )
    shutil.rmtree(folder.root, ignore_errors=True)
    left = find_leftovers(folder)
    if left:
        raise ClusterError(f"cluster {folder.name}: this could not be removed: {left}")


def mounts_below(folder: Path, mountinfo: str) -> list[str]:
    """Mount points inside a folder, innermost first, from the text of /proc/self/mountinfo."""
    points = (line.split()[4].replace("\\040", " ") for line in mountinfo.splitlines())
    return sorted((point for point in points if Path(point).is_relative_to(folder)), key=len, reverse=True)


def _remove_link(link: str, timeout_seconds: float) -> None:
    """It vanishes by itself soon after the namespace at its other end; deleting it is for a half-made one."""
    with contextlib.suppress(ToolError):
        run(["ip", "link", "delete", link])
    wait_until(lambda: not (_LINKS / link).exists(), what=f"end of link {link}", timeout_seconds=timeout_seconds)


def _try_remove_groups(cluster: str) -> bool:
    try:
        remove_groups(cluster)
    except OSError:
        return False
    return True


def remove_abandoned(prefix: str) -> list[str]:
    """Remove clusters of test runs that were killed: their names end in the pid and start time of their owner."""
    removed = []
    for name in running_names():
        owner = owner_of(name, prefix)
        if owner is not None and not is_running(owner):
            remove_leftovers(ClusterFolder.of(name))
            removed.append(name)
    return removed


def owned_name(prefix: str, owner: ProcessId) -> str:
    """A cluster name that says whose it is."""
    return f"{prefix}-{owner.pid}-{owner.started}"


def owner_of(name: str, prefix: str) -> ProcessId | None:
    match = re.fullmatch(rf"{re.escape(prefix)}-(\d+)-(\d+)", name)
    return ProcessId(int(match[1]), int(match[2])) if match else None

"""What can go wrong with a local cluster.

ClusterError
├── HostError          the machine lacks something: rights, a package, disk space, a kernel feature
├── BuildError         a Go build or a download failed
├── CollisionError     a port, folder, name or address is taken by somebody else
├── ComponentError     a process ended, or did not become ready in time (carries the end of its log)
├── NotRunningError    there is no cluster of that name
└── ToolError          kubectl, helm or ctr answered with a failure
"""

from __future__ import annotations

from pathlib import Path


class ClusterError(Exception):
    """Base of everything this package raises on purpose; the message is meant for people."""


class HostError(ClusterError):
    """The machine cannot run a local cluster as it is; the message says what to install or change."""


class BuildError(ClusterError):
    """Binaries could not be built or fetched."""


class CollisionError(ClusterError):
    """Something that the cluster needs for itself is in use; named before anything is started."""


class ComponentError(ClusterError):
    """A component ended or stayed unready. `log` is the file to read."""

    def __init__(self, message: str, *, log: Path | None = None) -> None:
        super().__init__(message + (f"\n{_tail(log)}" if log else ""))
        self.log = log


class NotRunningError(ClusterError):
    """No cluster of that name is up."""


class ToolError(ClusterError):
    """A command-line tool failed; its words are in the message."""


def _tail(log: Path, lines: int = 12) -> str:
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return f"(no log at {log})"
    last = [f"    {line[:300]}" for line in text.splitlines()[-lines:]]
    return "\n".join([f"  the end of {log}:", *last])

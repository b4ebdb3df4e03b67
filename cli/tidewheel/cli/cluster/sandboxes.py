"""A sandbox is what a machine would be: a set of network, mount and process namespaces held by one init process.

The control plane lives in one, each node in its own. All that such a machine makes (processes, mounts, links, routes,
iptables chains) ends with its init process, by the kernel's doing, also after SIGKILL of anything. So nothing of a
cluster can be left on the host but folders, its cgroups and the host's end of one cable, which ends with the other end.
Ports, chains and folders with fixed names (`/var/lib/kubelet/device-plugins`) cannot collide either.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from tidewheel.cli.cluster.errors import ClusterError, NotRunningError
from tidewheel.cli.cluster.processes import Launch, ProcessTable, enter
from tidewheel.cli.cluster.shell import run

CONTROL_PLANE = "control-plane"
_PREPARED = "/run/prepared"  # in the sandbox's own /run, so it ends with it
# Replaced inside every sandbox: the places where node programs insist on fixed paths.
_OWN_FOLDERS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log")


def node_sandbox(index: int) -> str:
    """The name of the init process of a node."""
    return f"node-{index}"


class Sandboxes:
    """Opens and enters the sandboxes of one cluster."""

    def __init__(self, processes: ProcessTable, *, init: Path, folder: Path) -> None:
        self._processes = processes
        self._init = init
        self._folder = folder
        for hidden in ("/run", *_OWN_FOLDERS):
            if folder.is_relative_to(hidden):
                raise ClusterError(
                    f"the cluster folder {folder} must not be below {hidden}; set XDG_STATE_HOME elsewhere"
                )

    def open(self, name: str, wire: Callable[[], None]) -> None:
        """Start the init process, give it its own /run, /var/log and state folders, and wire it.

        Does nothing when that has been done; a sandbox that an interrupted `up` left half made is made anew.
        """
        if self._is_prepared(name):
            return
        self._processes.stop(name, sig=signal.SIGKILL)
        self._processes.start(Launch(name, [str(self._init)], new_namespaces=True))
        lines = ["mount --make-rshared /", "mount -t tmpfs -o mode=755 tmpfs /run", "ip link set lo up"]
        for place in _OWN_FOLDERS:
            own = self._folder / "sandboxes" / name / place.strip("/").replace("/", "-")
            own.mkdir(parents=True, exist_ok=True)
            Path(place).mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --bind '{own}' {place}")
        lines += [f"echo {value} > /proc/sys/{key}" for key, value in _SYSCTLS.items()]
        self.shell(name, lines)
        wire()
        self.shell(name, [f"touch {_PREPARED}"])

    def _is_prepared(self, name: str) -> bool:
        process = self._processes.find(name)
        return process is not None and Path(f"/proc/{process.pid}/root{_PREPARED}").exists()

    def is_open(self, name: str) -> bool:
        return self._processes.find(name) is not None

    def pid(self, name: str) -> int:
        process = self._processes.find(name)
        if process is None:
            raise NotRunningError(f"{name} of this cluster is not running")
        return process.pid

    def shell(self, name: str, lines: list[str]) -> str:
        """Run shell lines inside; the first that fails ends it and raises ToolError."""
        return run([*enter(self.pid(name)), "sh", "-e"], stdin="\n".join(lines))

    def run(self, name: str, *command: str, timeout_seconds: float = 60) -> str:
        return run([*enter(self.pid(name)), *command], timeout_seconds=timeout_seconds)


_SYSCTLS: Mapping[str, str] = {
    "net/ipv4/ip_forward": "1",
    # Replies may come back through another cable than the one that a strict filter expects.
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
}

"""What must hold on this machine before anything is started."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tidewheel.cli.cluster.cgroups import leftover_groups
from tidewheel.cli.cluster.errors import CollisionError, HostError
from tidewheel.cli.cluster.folders import ClusterFolder
from tidewheel.cli.cluster.host_mounts import HostMount, closed_to_others
from tidewheel.cli.cluster.network import host_link
from tidewheel.cli.cluster.processes import MARK
from tidewheel.cli.cluster.procfs import all_processes, environment_value
from tidewheel.cli.cluster.progress import Progress

# Program -> Debian package. Looked for as root's PATH has them.
_PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip6tables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mount": "mount",
    "findmnt": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "redis-server": "redis-server",
}
_CNI_PLUGINS = [Path("/usr/lib/cni") / plugin for plugin in ("ptp", "host-local", "loopback", "portmap")]
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check_root() -> None:
    if os.geteuid() != 0:
        raise HostError(
            "a local cluster needs root: it makes network and process namespaces and runs containerd. "
            "Run it with sudo, or use `--provider kind` or `--provider existing`"
        )


def missing_packages() -> list[str]:
    """Debian packages whose programs are not here."""
    missing = {package for program, package in _PACKAGES.items() if not shutil.which(program, path=_PATH)}
    if not all(plugin.exists() for plugin in _CNI_PLUGINS):
        missing.add("containernetworking-plugins")
    return sorted(missing)


def install_packages(progress: Progress) -> None:
    """Install what is missing with apt-get, or say what to install."""
    missing = missing_packages()
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise HostError(f"please install {', '.join(missing)} (names as in Debian); there is no apt-get here to do it")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with progress.stage(f"installing {', '.join(missing)}", usually_seconds=25) as stage:
        for detail, command in (
            ("reading package lists", ["apt-get", "update", "-qq"]),
            ("installing", ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]),
        ):
            stage.update(detail)
            result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise HostError(f"apt-get could not install {', '.join(missing)}:\n{result.stderr.strip()[-1500:]}")
    if still := missing_packages():
        raise HostError(f"apt-get installed them, yet the programs of {', '.join(still)} are not on {_PATH}")


def check_readable(mounts: Iterable[HostMount]) -> None:
    """Pods run as an unprivileged user: what they mount must be open to others."""
    if closed := closed_to_others(mounts):
        places = " ".join(map(str, closed))
        raise HostError(f"pods run as an unprivileged user and could not read {places}: chmod o+rx {places}")


def check_collisions(folder: ClusterFolder) -> None:
    """Names on this machine that the cluster needs and that somebody else has."""
    link = host_link(folder.name)
    taken = [str(group) for group in leftover_groups(folder.name)]
    if (Path("/sys/class/net") / link).exists():
        taken.append(f"network link {link}")
    if taken:
        owners = sorted({mark for mark in _marks() if Path(mark).name == folder.name})
        whose = f"the cluster in {owners[0]}" if owners else "somebody else"
        raise CollisionError(
            f"cluster name {folder.name!r} is in use by {whose} ({', '.join(taken)}): choose another with --name"
        )


def _marks() -> list[str]:
    found = (environment_value(process.pid, MARK) for process in all_processes())
    return [mark for mark in found if mark]

"""Free ports and free subnets, chosen before anything starts."""

from __future__ import annotations

import ipaddress
import random
import socket
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tidewheel.cli.cluster.errors import CollisionError

_EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT: Final = 20_000


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Distinct TCP ports nobody listens on; all are held open until all are chosen, so that none repeats.

    They lie below the range from which the kernel takes ports for outgoing connections: a server that is stopped and
    started again on its port must not find a client of somebody else there.
    """
    sockets: list[socket.socket] = []
    candidates = list(range(_FIRST_PORT, max(_first_ephemeral_port(), _FIRST_PORT + 1_000)))
    random.shuffle(candidates)
    try:
        for port in candidates:
            if len(sockets) == count:
                break
            each = socket.socket()
            sockets.append(each)
            try:
                each.bind((host, port))
            except OSError:
                sockets.pop().close()
        if len(sockets) < count:
            raise CollisionError(f"fewer than {count} TCP ports of {host} from {_FIRST_PORT} on are free")
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _first_ephemeral_port() -> int:
    return int(_EPHEMERAL_RANGE.read_text().split()[0]) if _EPHEMERAL_RANGE.exists() else 32_768


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def choose_subnet(
    name: str,
    candidates: Sequence[ipaddress.IPv4Network],
    taken: Iterable[ipaddress.IPv4Network],
    *,
    purpose: str,
) -> ipaddress.IPv4Network:
    """The same cluster name gets the same subnet each time, unless a route of this machine already covers it."""
    used = [network for network in taken if network.prefixlen > 0]
    start = zlib.crc32(name.encode()) % len(candidates)
    for offset in range(len(candidates)):
        candidate = candidates[(start + offset) % len(candidates)]
        if not any(candidate.overlaps(network) for network in used):
            return candidate
    raise CollisionError(
        f"no free subnet for {purpose}: the routes of this machine cover all {len(candidates)} candidates"
    )

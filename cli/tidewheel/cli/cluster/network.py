"""The wires of a cluster: a bridge in the control plane's sandbox, one cable to the host and one to each node.

Pods are reached by plain routes. The host's own firewall, forwarding switch and bridges are not touched.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from ipaddress import IPv4Address, IPv4Network

from tidewheel.cli.cluster.addresses import choose_subnet
from tidewheel.cli.cluster.errors import ToolError
from tidewheel.cli.cluster.sandboxes import CONTROL_PLANE, Sandboxes, node_sandbox
from tidewheel.cli.cluster.settings import SUBNETS, NetworkPlan
from tidewheel.cli.cluster.shell import run


def plan_network(name: str) -> NetworkPlan:
    """The subnet that belongs to the name, or the next that no route of this machine covers."""
    return NetworkPlan(choose_subnet(name, SUBNETS, routed_networks(run(["ip", "-json", "route"])), purpose=name))


def routed_networks(ip_json: str) -> list[IPv4Network]:
    """Destinations in the output of `ip -json route`."""
    destinations = [route["dst"] for route in json.loads(ip_json or "[]")]
    return [IPv4Network(each, strict=False) for each in destinations if each != "default"]


def host_link(name: str) -> str:
    """The host's end of the cable. Link names have at most 15 characters, cluster names more: hence a digest."""
    return f"tw-{zlib.crc32(name.encode()):08x}"


def hardware_address(address: IPv4Address) -> str:
    """The link address of who has this address, the same for ever.

    A bridge without one of its own takes its lowest port's, and so another when a node goes; whoever remembers the
    old one then sends into nothing for up to 50 seconds (measured).
    """
    return "02:00:" + ":".join(f"{octet:02x}" for octet in address.packed)


class Network:
    """Lays the wires between sandboxes that are open."""

    def __init__(self, name: str, plan: NetworkPlan, sandboxes: Sandboxes) -> None:
        self._link = host_link(name)
        self._plan = plan
        self._sandboxes = sandboxes

    def connect_control_plane(self) -> None:
        plan, pid = self._plan, self._sandboxes.pid(CONTROL_PLANE)
        with contextlib.suppress(ToolError):  # of a control plane that has just ended
            run(["ip", "link", "delete", self._link])
        run(["ip", "link", "add", self._link, "type", "veth", "peer", "name", "host", "netns", str(pid)])
        self._sandboxes.shell(
            CONTROL_PLANE,
            [
                f"ip link add wire address {hardware_address(plan.control_plane)} type bridge",
                f"ip address add {plan.control_plane}/{plan.wire_prefix} dev wire",
                "ip link set wire up",
                "ip link set host master wire up",
                f"ip route add default via {plan.host}",
            ],
        )
        run(["ip", "address", "add", f"{plan.host}/{plan.wire_prefix}", "dev", self._link])
        run(["ip", "link", "set", self._link, "up"])

    def connect_node(self, index: int) -> None:
        plan, node = self._plan, node_sandbox(index)
        pid = self._sandboxes.pid(node)
        self._sandboxes.shell(
            CONTROL_PLANE,
            [
                # Another sandbox's pid means nothing in here: the far end is moved from the host.
                f"ip link delete {node} 2>/dev/null || true",  # of a node that has just ended
                f"ip link add {node} type veth peer name {node}-far",
                f"ip link set {node} master wire up",
            ],
        )
        self._move(f"{node}-far", pid)
        self._sandboxes.shell(
            node,
            [
                f"ip link set {node}-far name eth0 address {hardware_address(plan.node(index))}",
                f"ip address add {plan.node(index)}/{plan.wire_prefix} dev eth0",
                "ip link set eth0 up",
                f"ip route add default via {plan.host}",
            ],
        )
        self._route(index)

    def cut(self, index: int) -> None:
        """Unplug a node: its processes go on, nothing reaches it."""
        self._sandboxes.run(CONTROL_PLANE, "ip", "link", "set", node_sandbox(index), "down")

    def reconnect(self, index: int) -> None:
        self._sandboxes.run(CONTROL_PLANE, "ip", "link", "set", node_sandbox(index), "up")

    def _others(self, index: int) -> list[int]:
        """Nodes that are up, this one left out."""
        return [other for other in range(1, 10) if other != index and self._sandboxes.is_open(node_sandbox(other))]

    def _move(self, link: str, pid: int) -> None:
        holder = self._sandboxes.pid(CONTROL_PLANE)
        run(["nsenter", f"--target={holder}", "--net", "--", "ip", "link", "set", link, "netns", str(pid)])

    def _route(self, index: int) -> None:
        """Tell everybody else where this node's pods are; the first node also answers for Services."""
        plan = self._plan
        routes = [(plan.pods(index), plan.node(index))]
        if index == 1:
            routes.append((plan.services, plan.node(1)))
        for destination, gateway in routes:
            arguments = ["ip", "route", "replace", str(destination), "via", str(gateway)]
            run(arguments)
            self._sandboxes.run(CONTROL_PLANE, *arguments)
        for other in self._others(index):
            self._sandboxes.run(
                node_sandbox(other), "ip", "route", "replace", str(plan.pods(index)), "via", str(plan.node(index))
            )
            self._sandboxes.run(
                node_sandbox(index), "ip", "route", "replace", str(plan.pods(other)), "via", str(plan.node(other))
            )

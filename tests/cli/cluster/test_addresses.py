"""Subnets and names that clusters side by side do not share."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from tidewheel.cli.cluster.addresses import choose_subnet, free_ports
from tidewheel.cli.cluster.errors import ClusterError, CollisionError
from tidewheel.cli.cluster.folders import ClusterFolder
from tidewheel.cli.cluster.network import host_link, routed_networks
from tidewheel.cli.cluster.settings import SUBNETS, ClusterSettings, NetworkPlan


def test_a_name_gets_the_same_subnet_each_time() -> None:
    assert choose_subnet("demo", SUBNETS, [], purpose="demo") == choose_subnet("demo", SUBNETS, [], purpose="demo")


@pytest.mark.parametrize("route", ["same", "inside", "around"])
def test_a_subnet_that_a_route_touches_is_passed_over(route: str) -> None:
    first = choose_subnet("demo", SUBNETS, [], purpose="demo")
    taken = {"same": first, "inside": IPv4Network((int(first[7]), 32)), "around": first.supernet(1)}[route]
    assert not choose_subnet("demo", SUBNETS, [taken], purpose="demo").overlaps(taken)


def test_the_default_route_takes_nothing() -> None:
    routes = routed_networks('[{"dst":"default","gateway":"192.0.2.1"},{"dst":"192.0.2.0/24"},{"dst":"10.1.2.3"}]')
    assert routes == [IPv4Network("192.0.2.0/24"), IPv4Network("10.1.2.3/32")]


def test_a_machine_without_a_free_subnet_is_told_so() -> None:
    with pytest.raises(CollisionError, match="no free subnet for demo"):
        choose_subnet("demo", SUBNETS, [IPv4Network("10.0.0.0/8")], purpose="demo")


def test_nothing_of_a_plan_overlaps() -> None:
    plan = NetworkPlan(IPv4Network("10.201.0.0/16"))
    wire = IPv4Network((int(plan.subnet[0]), plan.wire_prefix))
    ranges = [wire, plan.services, *(plan.pods(index) for index in range(1, 10))]
    assert not [(a, b) for a in ranges for b in ranges if a != b and a.overlaps(b)]
    everyone = [plan.host, plan.control_plane, *(plan.node(index) for index in range(1, 10))]
    assert len(set(everyone)) == len(everyone)
    assert all(address in wire for address in everyone)
    assert plan.dns_service == IPv4Address("10.201.240.10")


def test_ports_chosen_together_differ() -> None:
    assert len(set(free_ports(50))) == 50


def test_link_names_fit_the_kernel_and_differ() -> None:
    links = {host_link(name) for name in ("a", "b", "x" * 30, "x" * 29)}
    assert len(links) == 4
    assert all(len(link) <= 15 for link in links)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "..", "a" * 31, "a_b"])
def test_a_name_that_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="lower-case letters"):
        ClusterFolder.of(name)


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"nodes": 10}, {"gpus": -1}, {"kwok_nodes": 5001}])
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ClusterError, match="--"):
        ClusterSettings(**wrong)  # type: ignore[arg-type]


def test_no_outgoing_connection_can_take_a_chosen_port_while_its_server_is_away() -> None:
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port < first_ephemeral for port in free_ports(50))

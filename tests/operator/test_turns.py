"""Two operators: one writes, the other takes over."""

import pytest
from tests.faults.proxy import Match, Refuse
from tests.operator.world import OperatorProcess, World, eventually, reported

from tidewheel.cli.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.component


async def leads(world: World, operator: OperatorProcess) -> bool:
    _, metrics = await world.fetch(operator, "/metrics")
    return "tidewheel_operator_leader 1.0" in metrics


async def leader_of(world: World, *operators: OperatorProcess) -> OperatorProcess:
    """The one that leads; fails if two do."""
    found: list[OperatorProcess] = []

    async def one() -> bool:
        found[:] = [each for each in operators if each.is_running() and await leads(world, each)]
        assert len(found) <= 1, "two operators lead"
        return len(found) == 1

    await eventually(one, "one operator leads")
    return found[0]


async def test_one_of_two_writes_and_a_clean_stop_hands_over_at_once(world: World) -> None:
    """The Lease would last longer than anybody here waits."""
    async with reported(world):
        first = world.start_operator(lease_seconds="900", renew_deadline_seconds="600")
        assert await leader_of(world, first) is first
        second = world.start_operator(lease_seconds="900", renew_deadline_seconds="600")
        await world.apply_version("v1", replicas=1)
        await world.apply_rule(v1=100)
        await eventually(lambda: world.settled({"v1": 10_000}, v1=1), "v1 serves")
        assert await leader_of(world, first, second) is first
        first.terminate()
        assert first.wait() == 0
        assert await leader_of(world, second) is second
        await world.apply_version("v1", replicas=2)
        await eventually(lambda: world.settled({"v1": 10_000}, v1=2), "the second one works")
    assert world.kubelet.most_at_once["v1"] == 2


async def test_a_leader_that_is_killed_is_replaced_when_its_lease_has_expired(world: World) -> None:
    async with reported(world):
        first = world.start_operator()
        assert await leader_of(world, first) is first
        second = world.start_operator()
        first.kill()
        first.wait()
        assert await leader_of(world, second) is second


async def test_a_leader_that_is_cut_off_stops_writing_and_the_other_takes_over(
    world: World, installed: ControlPlane
) -> None:
    async with reported(world):
        cut_off = world.start_operator()
        assert await leader_of(world, cut_off) is cut_off
        healthy = world.start_operator(kubeconfig=installed.kubeconfig)
        world.proxy.inject(Match(), Refuse(503), times=None)
        world.proxy.break_streams()
        assert await leader_of(world, cut_off, healthy) is not None

        async def taken_over() -> bool:
            return await leads(world, healthy) and not await leads(world, cut_off)

        await eventually(taken_over, "the healthy one leads and the other does not")
        await world.apply_version("v1", replicas=1)
        await world.apply_rule(v1=100)
        await eventually(lambda: world.settled({"v1": 10_000}, v1=1), "the healthy one works")
        world.proxy.clear()
        assert await leader_of(world, cut_off, healthy) is healthy

"""The operator is killed with SIGKILL after every single write, and at random: the world ends as it should.

A write is killed after it was executed and before its answer arrives, so the next operator knows nothing of it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import pytest
from tests.faults.proxy import WRITES, After
from tests.operator.world import NewWorld, OperatorProcess, World, eventually, reported

from tidewheel.clients.kubernetes import MODEL_VERSIONS, ROUTING_TABLES

pytestmark = pytest.mark.component

AT_ONCE = 2
"""Worlds that run beside each other: starting a Python program is most of the cost."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``prepare`` with a healthy operator, then ``change`` with one that is killed; then ``expected`` must come."""

    prepare: Callable[[World], Awaitable[None]]
    change: Callable[[World], Awaitable[None]]
    split: Mapping[str, int]
    replicas: Mapping[str, int]
    services: tuple[str, ...]


async def _nothing(world: World) -> None:
    pass


async def _one_version(world: World) -> None:
    await world.apply_version("v1", replicas=2)
    await world.apply_rule(keep_previous_seconds=0, v1=100)


async def _three_replicas(world: World) -> None:
    await world.apply_version("v1", replicas=3)
    await world.apply_rule(v1=100)


async def _two_versions(world: World) -> None:
    await world.apply_version("v1", replicas=1)
    await world.apply_version("v2", replicas=2)
    await world.apply_rule(keep_previous_seconds=0, v1=100)


async def _one_replica(world: World) -> None:
    await world.apply_version("v1", replicas=1)


async def _half_each(world: World) -> None:
    await world.apply_rule(keep_previous_seconds=0, v1=50, v2=50)


async def _delete_second(world: World) -> None:
    await world.client.delete(MODEL_VERSIONS, "chat-v2", world.namespace)


ALL_V1 = {"v1": 10_000}
SCENARIOS = {
    "create": Scenario(_nothing, _one_version, ALL_V1, {"v1": 2}, ("chat-v1",)),
    "scale": Scenario(_three_replicas, _one_replica, ALL_V1, {"v1": 1}, ("chat-v1",)),
    "delete": Scenario(_two_versions, _delete_second, ALL_V1, {"v1": 1}, ("chat-v1",)),
    "split": Scenario(
        _two_versions, _half_each, {"v1": 5_000, "v2": 5_000}, {"v1": 1, "v2": 2}, ("chat-v1", "chat-v2")
    ),
}


async def _prepare(world: World, scenario: Scenario) -> OperatorProcess:
    """An operator that has brought the world to where the change begins, and rests."""
    operator = world.start_operator()
    if scenario.prepare is _nothing:
        return operator
    await scenario.prepare(world)

    async def quiet() -> bool:
        before = world.proxy.executed_writes()
        await asyncio.sleep(0.5)
        return await world.split() == ALL_V1 and world.proxy.executed_writes() == before

    await eventually(quiet, "the scenario is prepared")
    return operator


async def _run(world: World, scenario: Scenario, kill_after: int) -> bool:
    """Whether the change needed as many writes; if so the operator was killed after the last of them."""
    operator = await _prepare(world, scenario)
    fault = world.proxy.inject(WRITES, After(operator.kill), skip=kill_after - 1)
    await scenario.change(world)

    async def over() -> bool:
        return not operator.is_running() or await world.settled(scenario.split, **scenario.replicas)

    await eventually(over, f"the operator is killed after write {kill_after}, or done")
    killed = fault.applied > 0
    if killed:
        await asyncio.to_thread(operator.wait)
        world.start_operator()
    await _converged(world, scenario)
    return killed


async def _converged(world: World, scenario: Scenario) -> None:
    await eventually(lambda: world.settled(scenario.split, **scenario.replicas), "the world is as wanted")

    async def services() -> bool:
        return await world.services() == sorted(scenario.services)

    await eventually(services, f"the Services are {scenario.services}")
    table = await world.client.get(ROUTING_TABLES, "chat", world.namespace)
    assert sum(target["weight"] for target in table["spec"]["targets"]) == 10_000
    for version, count in world.kubelet.most_at_once.items():
        assert count <= {"v1": 3, "v2": 2}[version], f"a double of {version}: {sorted(world.kubelet.history)}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_killed_after_every_single_write_it_ends_as_if_nothing_had_happened(
    name: str, new_world: NewWorld
) -> None:
    scenario = SCENARIOS[name]
    needed = asyncio.Event()
    numbers = iter(range(1, 100))
    limit = asyncio.Semaphore(AT_ONCE)
    killed: list[int] = []

    async def one_after_another() -> None:
        while not needed.is_set():
            kill_after = next(numbers)
            async with limit, new_world() as world, reported(world):
                if await _run(world, scenario, kill_after):
                    killed.append(kill_after)
                else:
                    needed.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_another())
    assert len(killed) >= 3, f"the scenario was to take several writes, it took {killed}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", [6, pytest.param(30, marks=pytest.mark.long)])
async def test_killed_at_random_it_ends_with_exactly_the_wanted_pods(world: World, kills: int) -> None:
    dice = random.Random(20261130)
    await world.apply_version("v1", replicas=2)
    await world.apply_version("v2", replicas=1)
    await world.apply_rule(keep_previous_seconds=0, v1=100)
    async with reported(world):
        for _ in range(kills):
            operator = world.start_operator()
            await world.apply_version("v1", replicas=dice.randint(1, 4))
            await world.apply_version("v2", replicas=dice.randint(1, 3))
            share = dice.choice([0, 10, 50, 90])
            await world.apply_rule(keep_previous_seconds=0, v1=100 - share, **({"v2": share} if share else {}))
            await asyncio.sleep(dice.uniform(1.0, 3.0))
            assert sum((await world.split()).values()) in {0, 10_000}
            operator.kill()
            await asyncio.to_thread(operator.wait)
        world.start_operator()
        await world.apply_version("v1", replicas=2)
        await world.apply_version("v2", replicas=2)
        await world.apply_rule(keep_previous_seconds=0, v1=70, v2=30)
        await eventually(lambda: world.settled({"v1": 7_000, "v2": 3_000}, v1=2, v2=2), "the world is as wanted")
    assert world.kubelet.most_at_once["v1"] <= 4
    assert world.kubelet.most_at_once["v2"] <= 3

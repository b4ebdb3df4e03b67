"""The API server is sick: nothing is created or deleted by mistake, nothing is missed, the process stays."""

import asyncio

import pytest
from tests.faults.proxy import (
    WRITES,
    CutInMidEvent,
    DropEvent,
    DuplicateEvent,
    ErrorEvent,
    LoseAnswer,
    Match,
    Mute,
    Refuse,
    ReorderEvent,
    calls,
)
from tests.operator.world import OperatorProcess, World, eventually, reported

from tidewheel.clients.kubernetes import PODS

pytestmark = pytest.mark.component


async def running(world: World, **settings: str) -> OperatorProcess:
    """An operator that leads, with one version of two replicas that serve all traffic."""
    operator = world.start_operator(**settings)
    await world.apply_version("v1", replicas=2)
    await world.apply_rule(v1=100)
    await eventually(lambda: world.settled({"v1": 10_000}, v1=2), "v1 serves")
    return operator


async def scaled(world: World, replicas: int, *, trouble: str) -> None:
    """A change is carried out in spite of it."""
    await world.apply_version("v1", replicas=replicas)
    await eventually(lambda: world.settled({"v1": 10_000}, v1=replicas), f"{replicas} replicas in spite of {trouble}")


async def test_while_the_api_server_is_away_nothing_happens_and_on_its_return_changes_are_applied(
    world: World,
) -> None:
    async with reported(world):
        operator = await running(world)
        fault = world.proxy.inject(Match(), Refuse(503), times=None)
        world.proxy.break_streams()
        await world.apply_version("v1", replicas=3)
        await asyncio.sleep(8)  # longer than the Lease: the term is lost too
        assert len(await world.pods()) == 2
        fault.remove()
        world.proxy.clear()
        await eventually(lambda: world.settled({"v1": 10_000}, v1=3), "the change is applied")
        assert operator.is_running()
    assert sorted(world.kubelet.history) == ["chat-v1-0-0", "chat-v1-1-0", "chat-v1-2-0"]


async def test_a_half_open_watch_is_noticed(world: World) -> None:
    """kopf#585, kopf#957: every stream is mute; our own lists are too far away to help."""
    async with reported(world):
        await running(world, list_seconds="3600")
        mute = world.proxy.inject(calls("watch"), Mute(), times=None)
        await world.apply_version("v1", replicas=3)
        await asyncio.sleep(1)
        mute.remove()
        await eventually(lambda: world.settled({"v1": 10_000}, v1=3), "the change is applied")


async def test_a_deletion_that_no_watch_reports_is_noticed_by_our_own_list(world: World) -> None:
    """kubernetes-client/python#801; kopf (measured)."""
    async with reported(world):
        operator = await running(world)
        dropped = world.proxy.inject(calls("watch", resource="pods"), DropEvent(frozenset({"DELETED"})), times=None)
        lost = world.proxy.inject(calls("watch", resource="pods"), DropEvent(frozenset({"MODIFIED"})), times=None)
        before = {pod["metadata"]["uid"] for pod in await world.pods()}
        await world.client.delete(PODS, "chat-v1-1-0", world.namespace)

        async def replaced() -> bool:
            assert len(await world.serving_pods("v1")) == 2
            return {pod["metadata"]["uid"] for pod in await world.pods()} != before

        await eventually(replaced, "the deleted pod is replaced")
        assert dropped.applied + lost.applied >= 1
        dropped.remove()
        lost.remove()
        _, metrics = await world.fetch(operator, "/metrics")
        assert "tidewheel_watch_missed_deletions_total" in metrics


SICK = {
    "in-stream ERROR 500": (calls("watch"), ErrorEvent(500)),
    "in-stream ERROR 410": (calls("watch"), ErrorEvent(410)),
    "watch 503": (calls("watch"), Refuse(503)),
    "watch 410": (calls("watch"), Refuse(410, "Expired")),
    "list 503": (calls("list"), Refuse(503)),
    "writes 503": (Match(writes_only=True), Refuse(503)),
    "writes 409": (Match(writes_only=True, excluded=frozenset({"leases"})), Refuse(409, "Conflict")),
    "429": (Match(), Refuse(429, retry_after=1)),
    "401": (Match(), Refuse(401, "Unauthorized")),
    "403 on watch": (calls("watch"), Refuse(403, "Forbidden")),
    "watch cut in mid-line": (calls("watch"), CutInMidEvent()),
    "events doubled": (calls("watch"), DuplicateEvent()),
    "events out of order": (calls("watch"), ReorderEvent()),
    "answers of writes lost": (WRITES, LoseAnswer()),
}


async def test_a_sick_api_server_is_survived(world: World) -> None:
    """One operator through all of them: whatever one leaves behind must not harm the next."""
    async with reported(world):
        operator = await running(world)
        replicas = 2
        for name, (match, effect) in SICK.items():
            fault = world.proxy.inject(match, effect, times=6)
            world.proxy.break_streams()
            replicas = 5 - replicas
            await scaled(world, replicas, trouble=name)
            fault.remove()
            assert operator.is_running(), name
    assert world.kubelet.most_at_once["v1"] == 3


async def test_a_list_that_is_replayed_writes_nothing(world: World) -> None:
    async with reported(world):
        await running(world)
        await quiet(world)
        writes = len(world.proxy.seen())
        for _ in range(3):
            world.proxy.inject(calls("watch"), ErrorEvent(410), times=5)
            world.proxy.break_streams()
            await asyncio.sleep(2)
    assert [str(call) for call in world.proxy.seen()[writes:]] == []


async def quiet(world: World) -> None:
    async def unchanged() -> bool:
        before = len(world.proxy.seen())
        await asyncio.sleep(1)
        return len(world.proxy.seen()) == before

    await eventually(unchanged, "nothing is written any more")

"""Replicas that leave: no stream is cut before its time, and nothing waits for ever."""

import pytest
from tests.operator.kubelet import Behaviour
from tests.operator.world import World, eventually, is_draining, reported

from tidewheel.clients.kubernetes import MODEL_VERSIONS, PODS

pytestmark = pytest.mark.component


async def serving(world: World, version: str, count: int) -> None:
    async def there() -> bool:
        return len(await world.serving_pods(version)) == count

    await eventually(there, f"{count} replicas of {version} serve")


async def gone(world: World, version: str) -> bool:
    return not await world.pods(version) and await world.find(MODEL_VERSIONS, f"chat-{version}") is None


async def test_a_deleted_version_ends_its_open_streams_before_its_pod_goes(world: World) -> None:
    world.start_operator()
    await world.apply_version("v1", replicas=1)
    async with reported(world):
        await serving(world, "v1", 1)
        engine = world.kubelet.engines["chat-v1-0-0"]
        engine.streams = 5
        await world.client.delete(MODEL_VERSIONS, "chat-v1", world.namespace)

        async def told_to_drain() -> bool:
            return engine.draining

        await eventually(told_to_drain, "the engine is told to drain")
        for left in (4, 3, 2, 1):
            engine.streams = left
            (pod,) = await world.pods("v1")
            assert is_draining(pod)
            assert "deletionTimestamp" not in pod["metadata"], f"deleted with {left} open streams"
        engine.streams = 0
        await eventually(lambda: gone(world, "v1"), "pod and version are gone")
    assert await world.services() == []


async def test_at_the_drain_timeout_the_pod_goes_with_its_streams(world: World) -> None:
    world.start_operator()
    await world.apply_version("v1", replicas=1, drain={"timeoutSeconds": 2})
    async with reported(world):
        await serving(world, "v1", 1)
        world.kubelet.engines["chat-v1-0-0"].streams = 1
        await world.client.delete(MODEL_VERSIONS, "chat-v1", world.namespace)
        await eventually(lambda: gone(world, "v1"), "pod and version are gone")


async def test_an_engine_that_does_not_answer_is_not_taken_for_idle(world: World) -> None:
    world.start_operator()
    await world.apply_version("v1", replicas=1, drain={"timeoutSeconds": 600})
    async with reported(world):
        await serving(world, "v1", 1)
        engine = world.kubelet.engines["chat-v1-0-0"]
        engine.answers = False
        await world.client.delete(MODEL_VERSIONS, "chat-v1", world.namespace)

        async def asked_in_vain() -> bool:
            log = world.operators[0].log.read_text()
            return log.count("load of pod chat-v1-0-0 is unknown") >= 5

        await eventually(asked_in_vain, "the engine is asked")
        (pod,) = await world.pods("v1")
        assert "deletionTimestamp" not in pod["metadata"]
        engine.answers = True
        await eventually(lambda: gone(world, "v1"), "pod and version are gone once it answers")


async def test_pods_stuck_on_a_vanished_node_block_neither_replacement_nor_deletion(world: World) -> None:
    world.start_operator()
    await world.apply_version("v1", replicas=1)
    async with reported(world):
        await serving(world, "v1", 1)
        world.kubelet.behaviours["v1"] = Behaviour(confirms_deletion=False)
        await world.client.delete(PODS, "chat-v1-0-0", world.namespace)

        async def replaced() -> bool:
            return await world.serving_pods("v1") == ["chat-v1-0-1"]

        await eventually(replaced, "the stuck pod is replaced")
        assert len(await world.pods("v1")) == 2, "the stuck one is still there"
        await world.client.delete(MODEL_VERSIONS, "chat-v1", world.namespace)

        async def version_gone() -> bool:
            return await world.find(MODEL_VERSIONS, "chat-v1") is None

        await eventually(version_gone, "the version goes although its pods cannot")


async def test_the_replica_with_the_fewest_streams_leaves(world: World) -> None:
    world.start_operator()
    await world.apply_version("v1", replicas=3)
    async with reported(world):
        await serving(world, "v1", 3)
        for slot, streams in enumerate((4, 0, 4)):
            world.kubelet.engines[f"chat-v1-{slot}-0"].streams = streams
        await world.apply_version("v1", replicas=2)

        async def settled() -> bool:
            return len(await world.pods("v1")) == 2

        await eventually(settled, "one replica has left")
    assert await world.serving_pods("v1") == ["chat-v1-0-0", "chat-v1-2-0"]

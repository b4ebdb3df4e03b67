"""The operator as a program against the real API server: versions become pods, and go again."""

import pytest
from tests.operator.world import World, eventually, reported

from tidewheel.clients.kubernetes import MODEL_VERSIONS

pytestmark = pytest.mark.component


async def test_a_version_with_replicas_gets_its_service_and_pods_and_says_so(world: World) -> None:
    world.start_operator()
    await world.apply_version("v1", replicas=2)
    async with reported(world):

        async def ready() -> bool:
            return (await world.version_condition("chat-v1", "Ready")).get("status") == "True"

        await eventually(ready, "chat-v1 is Ready")
    assert await world.serving_pods("v1") == ["chat-v1-0-0", "chat-v1-1-0"]
    assert await world.services() == ["chat-v1"]
    found = await world.client.get(MODEL_VERSIONS, "chat-v1", world.namespace)
    assert found["status"]["ready"] == "2/2"
    assert found["status"]["phase"] == "Ready"
    assert found["metadata"]["finalizers"] == ["tidewheel.dev/in-service"]


async def test_a_rule_moves_traffic_once_its_versions_have_ready_replicas(world: World) -> None:
    world.start_operator()
    await world.apply_version("v1", replicas=1)
    await world.apply_rule(v1=100)
    async with reported(world):

        async def in_force() -> bool:
            return await world.split() == {"v1": 10_000}

        await eventually(in_force, "the split v1:100")

        async def ready() -> bool:
            return (await world.rule_condition("chat", "Ready")).get("status") == "True"

        await eventually(ready, "the rule is Ready")

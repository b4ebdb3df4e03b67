"""Rules, tables and versions under people's hands: what carries traffic is never taken away by mistake."""

import pytest
from tests.operator.kubelet import Behaviour
from tests.operator.world import World, eventually, reported

from tidewheel.clients.kubernetes import MODEL_VERSIONS, ROUTING_RULES, ROUTING_TABLES, KubeObject

pytestmark = pytest.mark.component


async def in_force(world: World, **split: int) -> None:
    async def there() -> bool:
        return await world.split() == split

    await eventually(there, f"the split {split}")


async def uids(world: World) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await world.pods()}


async def two_versions(world: World) -> None:
    await world.apply_version("v1", replicas=1)
    await world.apply_version("v2", replicas=1)
    await world.apply_rule(v1=90, v2=10)
    await in_force(world, v1=9_000, v2=1_000)


async def test_weight_waits_for_a_token_and_other_versions_keep_their_traffic(world: World) -> None:
    world.start_operator()
    world.kubelet.behaviours["v2"] = Behaviour(exits=(3, "/models/m.gguf does not exist; mount it"))
    await world.apply_version("v1", replicas=1)
    await world.apply_rule(v1=100)
    async with reported(world):
        await in_force(world, v1=10_000)
        await world.apply_version("v2", replicas=1)
        await world.apply_rule(v1=50, v2=50)

        async def said() -> bool:
            found = await world.rule_condition("chat", "Reconciling")
            return found.get("reason") == "WaitingForReplicas" and "does not exist; mount it" in found["message"]

        await eventually(said, "the rule says what it waits for, and why")
        assert await world.split() == {"v1": 10_000}
        world.kubelet.behaviours["v2"] = Behaviour()
        await in_force(world, v1=5_000, v2=5_000)


async def test_a_deleted_rule_leaves_its_split_and_a_new_one_carries_on(world: World) -> None:
    world.start_operator()
    async with reported(world):
        await two_versions(world)
        before, pods = await world.client.get(ROUTING_TABLES, "chat", world.namespace), await uids(world)
        await world.delete(ROUTING_RULES, "chat", propagation="Foreground")

        async def orphaned() -> bool:
            table = await world.client.get(ROUTING_TABLES, "chat", world.namespace)
            return "orphanedAt" in table["spec"]

        await eventually(orphaned, "the table knows that its rule is gone")
        await world.apply_rule(v1=90, v2=10)

        async def answered() -> bool:
            table = await world.client.get(ROUTING_TABLES, "chat", world.namespace)
            rule = await world.client.get(ROUTING_RULES, "chat", world.namespace)
            return "orphanedAt" not in table["spec"] and table["spec"]["ruleUid"] == rule["metadata"]["uid"]

        await eventually(answered, "the new rule is answered")
        after = await world.client.get(ROUTING_TABLES, "chat", world.namespace)
    for field in ("targets", "salt", "previous", "cause"):
        assert after["spec"].get(field) == before["spec"].get(field), field
    assert await uids(world) == pods


async def test_a_table_without_a_rule_ends_after_its_time_and_its_versions_idle(world: World) -> None:
    world.start_operator()
    await world.apply_version("v1")
    await world.apply_rule(keep_previous_seconds=2, v1=100)
    async with reported(world):
        await in_force(world, v1=10_000)
        await world.delete(ROUTING_RULES, "chat")

        async def ended() -> bool:
            return await world.find(ROUTING_TABLES, "chat") is None and not await world.pods()

        await eventually(ended, "table and pods are gone")


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_a_deleted_version_keeps_its_pods_while_it_carries_traffic(world: World, propagation: str) -> None:
    world.start_operator()
    async with reported(world):
        await two_versions(world)
        pods = await uids(world)
        await world.delete(MODEL_VERSIONS, "chat-v1", propagation=propagation)

        async def said() -> bool:
            found = await world.version_condition("chat-v1", "Reconciling")
            return found.get("reason") == "InService"

        await eventually(said, "the version says that it is still in service")
        assert await uids(world) == pods
        await world.apply_rule(keep_previous_seconds=0, v2=100)

        async def gone() -> bool:
            return await world.find(MODEL_VERSIONS, "chat-v1") is None and not await world.pods("v1")

        await eventually(gone, "the version goes when it carries no traffic")
    assert set(await uids(world)) == {"chat-v2-0-0"}


async def test_a_rollback_by_hand_is_adopted_and_the_rejected_version_is_not_retried(world: World) -> None:
    world.start_operator()
    async with reported(world):
        await two_versions(world)
        table = await world.client.get(ROUTING_TABLES, "chat", world.namespace)
        await world.client.patch_merge(ROUTING_TABLES, "chat", world.namespace, rolled_back(table))

        async def said() -> bool:
            return (await world.rule_condition("chat", "Degraded")).get("reason") == "VersionRejected"

        await eventually(said, "the rule says that its version was rejected")
        await world.apply_rule(v1=80, v2=20)
        await eventually(said, "so it does for a newer generation")
        assert await world.split() == {"v1": 10_000}
        await world.apply_rule(v1=100)

        async def ready() -> bool:
            return (await world.rule_condition("chat", "Ready")).get("status") == "True"

        await eventually(ready, "a rule without the rejected version is obeyed")


def rolled_back(table: KubeObject) -> KubeObject:
    """What `kubectl rollback chat` writes."""
    first, second = table["spec"]["targets"]
    now = "2026-11-30T12:00:00Z"
    return {
        "spec": {
            "targets": [{**first, "weight": 10_000}],
            "previous": [first, second],
            "rejected": [
                {"digest": "sha256:other", "version": "v9", "reason": "old", "at": now},
                {"digest": second["digest"], "version": "v2", "reason": "it was slow", "at": now},
            ],
            "cause": {"actor": "alice", "reason": "Rollback", "at": now},
        }
    }


async def test_objects_restored_without_statuses_keep_split_and_pods(world: World) -> None:
    operator = world.start_operator()
    async with reported(world):
        await two_versions(world)
        pods = await uids(world)
        operator.terminate()
        operator.wait()
        saved = [
            (resource, await world.client.get(resource, name, world.namespace))
            for resource, name in (
                (MODEL_VERSIONS, "chat-v1"),
                (MODEL_VERSIONS, "chat-v2"),
                (ROUTING_TABLES, "chat"),
                (ROUTING_RULES, "chat"),
            )
        ]
        for resource, body in saved:
            name = body["metadata"]["name"]
            await world.client.patch_merge(resource, name, world.namespace, {"metadata": {"finalizers": None}})
            await world.client.delete(resource, name, world.namespace)
        for resource, body in saved:
            metadata = {"name": body["metadata"]["name"], "namespace": world.namespace}
            await world.client.create(
                resource,
                {
                    "apiVersion": body["apiVersion"],
                    "kind": body["kind"],
                    "metadata": metadata,
                    "spec": body["spec"],
                },
            )
        world.start_operator()

        async def carried_on() -> bool:
            return (
                all(
                    [
                        (await world.version_condition(f"chat-{name}", "Ready")).get("status") == "True"
                        for name in ("v1", "v2")
                    ]
                )
                and (await world.rule_condition("chat", "Ready")).get("status") == "True"
            )

        await eventually(carried_on, "versions and rule are Ready again")
    assert await uids(world) == pods, "no pod was restarted"
    assert await world.split() == {"v1": 9_000, "v2": 1_000}


async def test_an_slo_edit_reaches_the_table_without_touching_weights_or_pods(world: World) -> None:
    world.start_operator()
    async with reported(world):
        await two_versions(world)
        pods = await uids(world)
        await world.apply_version("v1", replicas=1, slo={"ttftMs": 400, "tpotMs": 20})

        async def arrived() -> bool:
            table = await world.client.get(ROUTING_TABLES, "chat", world.namespace)
            return bool(table["spec"]["targets"][0]["slo"] == {"ttftMs": 400, "tpotMs": 20})

        await eventually(arrived, "the table has the new slo")
    assert await world.split() == {"v1": 9_000, "v2": 1_000}
    assert await uids(world) == pods

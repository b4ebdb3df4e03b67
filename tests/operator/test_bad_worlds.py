"""Good object, bad world: the status says which trouble it is, in words that name the fix, within ten seconds."""

from functools import partial

import pytest
from tests.operator.kubelet import Behaviour
from tests.operator.world import World, eventually, model_version, reported

from tidewheel.clients.kubernetes import MODEL_VERSIONS, SERVICES
from tidewheel.clients.resources import Resource

pytestmark = pytest.mark.component

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
NO_GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available: 1 No victims."
WORLDS = {
    "artefact missing": (
        Behaviour(exits=(3, "/models/m.gguf does not exist; mount it with replica.pod.volumes")),
        "EngineCannotStart",
        "/models/m.gguf does not exist",
    ),
    "wrong sha256": (
        Behaviour(exits=(3, "sha256 of /models/m.gguf is 0a..., not 1b...; correct spec.artifact.sha256")),
        "EngineCannotStart",
        "correct spec.artifact.sha256",
    ),
    "image missing": (
        Behaviour(waiting=("ErrImagePull", 'failed to resolve "tidewheel:dev": not found')),
        "ImagePullFailed",
        "spec.engine.image",
    ),
    "no GPU left": (Behaviour(unschedulable=NO_GPU), "NoGpuFree", "needs 1 nvidia.com/gpu"),
    "dies on start": (Behaviour(exits=(1, "ValueError: bad rope scaling")), "CrashLoop", "bad rope scaling"),
}


async def test_the_status_names_the_trouble_and_the_fix(world: World) -> None:
    world.start_operator()
    versions = {f"v{number}": case for number, case in enumerate(WORLDS.values())}
    for version, (behaviour, _, _) in versions.items():
        world.kubelet.behaviours[version] = behaviour
        await world.apply_version(version, replicas=1, replica={"gpus": 1})
    async with reported(world):
        for version, (_, reason, words) in versions.items():
            await eventually(partial(says, world, f"chat-{version}", reason, words), f"{version} says {reason}")
            assert (await world.version_condition(f"chat-{version}", "Ready"))["status"] == "False"
            world.kubelet.behaviours[version] = Behaviour()
        for version in versions:
            await eventually(partial(is_ready, world, f"chat-{version}"), f"{version} recovers unaided")


async def says(world: World, name: str, reason: str, words: str) -> bool:
    found = await world.version_condition(name, "Degraded")
    return found.get("reason") == reason and words in found["message"]


async def is_ready(world: World, name: str) -> bool:
    return (await world.version_condition(name, "Ready")).get("status") == "True"


async def test_a_quota_is_quoted_and_refuses_a_few_calls_and_not_hundreds(world: World) -> None:
    """kubernetes#49145."""
    hard = {"pods": "2"}
    quota = await world.client.create(
        QUOTAS, {"metadata": {"name": "small", "namespace": world.namespace}, "spec": {"hard": hard}}
    )
    status = {"status": {"hard": hard, "used": {"pods": "0"}}}
    await world.client.patch_merge(QUOTAS, quota["metadata"]["name"], world.namespace, status, subresource="status")
    world.start_operator(backoff_limit_seconds="30")
    await world.apply_version("v1", replicas=60)
    async with reported(world):

        async def said() -> bool:
            found = await world.version_condition("chat-v1", "Degraded")
            return found.get("reason") == "QuotaExceeded" and "exceeded quota: small" in found["message"]

        await eventually(said, "the version says that the quota is used up")
    refused = [call for call in world.proxy.seen() if call.resource == "pods" and call.status == 403]
    assert 1 <= len(refused) <= 12, f"{len(refused)} calls refused"
    assert len(await world.pods()) == 2


async def test_a_service_of_somebody_else_is_never_taken(world: World) -> None:
    theirs = {"spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]}}
    await world.client.create(SERVICES, {"metadata": {"name": "chat-v1", "namespace": world.namespace}, **theirs})
    world.start_operator()
    await world.apply_version("v1", replicas=1)
    async with reported(world):

        async def said() -> bool:
            return (await world.version_condition("chat-v1", "Degraded")).get("reason") == "NameTaken"

        await eventually(said, "the version says that its Service's name is taken")
    found = await world.client.get(SERVICES, "chat-v1", world.namespace)
    assert found["spec"]["selector"] == {"app": "theirs"}
    assert await world.pods() == []


async def test_a_rule_names_the_version_that_is_missing_and_is_obeyed_when_it_comes(world: World) -> None:
    world.start_operator()
    await world.apply_rule(v1=100)
    async with reported(world):

        async def refused() -> bool:
            found = await world.rule_condition("chat", "Accepted")
            return found.get("reason") == "VersionNotFound" and "chat-v1" in found["message"]

        await eventually(refused, "the rule says what is missing")
        await world.apply_version("v1")

        async def obeyed() -> bool:
            return await world.split() == {"v1": 10_000}

        await eventually(obeyed, "the rule is obeyed")


async def test_in_a_terminating_namespace_nothing_is_created_and_the_version_goes(world: World) -> None:
    """tigera/operator#3791, awx-operator#228, kopf#1088."""
    world.start_operator()
    await world.apply_version("v1", replicas=1)
    async with reported(world):

        async def ready() -> bool:
            return (await world.version_condition("chat-v1", "Ready")).get("status") == "True"

        await eventually(ready, "chat-v1 is Ready")
        from tidewheel.clients.kubernetes import NAMESPACES

        await world.client.delete(NAMESPACES, world.namespace)
        creates = len([call for call in world.proxy.seen() if call.verb == "create"])
        await world.client.delete(MODEL_VERSIONS, "chat-v1", world.namespace)

        async def gone() -> bool:
            return await world.find(MODEL_VERSIONS, "chat-v1") is None

        await eventually(gone, "the version is gone")
    assert len([call for call in world.proxy.seen() if call.verb == "create"]) == creates


async def test_a_version_applied_twice_with_one_name_and_another_spec_gets_its_own_pods(world: World) -> None:
    """grove#783: delete and create within 100 ms."""
    world.start_operator()
    await world.apply_version("v1", replicas=1)
    async with reported(world):

        async def serves(name: str) -> bool:
            return name in await world.serving_pods("v1")

        await eventually(lambda: serves("chat-v1-0-0"), "the first one serves")
        first = {pod["metadata"]["uid"] for pod in await world.pods()}
        await world.client.patch_merge(MODEL_VERSIONS, "chat-v1", world.namespace, {"metadata": {"finalizers": None}})
        await world.client.delete(MODEL_VERSIONS, "chat-v1", world.namespace)
        await world.client.create(
            MODEL_VERSIONS,
            {
                "apiVersion": MODEL_VERSIONS.api_version,
                "kind": MODEL_VERSIONS.kind,
                **model_version(world.namespace, "v1", engine={"image": "tidewheel:other"}, replicas=1),
            },
        )

        async def replaced() -> bool:
            pods = await world.pods()
            images = [pod["spec"]["containers"][0]["image"] for pod in pods]
            return images == ["tidewheel:other"] and not first & {pod["metadata"]["uid"] for pod in pods}

        await eventually(replaced, "only the new one's pod is left")

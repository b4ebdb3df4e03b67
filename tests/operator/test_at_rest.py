"""What the operator costs: nothing is written at rest, many changes are few reconciles, rights are the least."""

import asyncio
import re
import secrets
from pathlib import Path

import pytest
import yaml
from tests.faults.proxy import ALL_WRITES
from tests.operator.world import World, eventually, reported

from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.clients.kubernetes import MODEL_VERSIONS
from tidewheel.operator.access_check import RULES_FILE

pytestmark = pytest.mark.component


async def test_at_rest_nothing_is_written_but_the_lease(world: World) -> None:
    """strimzi#13079, keycloak-operator#122."""
    world.start_operator(resync_seconds="1", list_seconds="1")
    for name in ("v1", "v2"):
        await world.apply_version(name, replicas=1)
    await world.apply_rule(v1=50, v2=50)
    async with reported(world):
        await eventually(lambda: world.settled({"v1": 5_000, "v2": 5_000}, v1=1, v2=1), "both serve")

        async def quiet() -> bool:
            before = len(world.proxy.seen())
            await asyncio.sleep(1)
            return len(world.proxy.seen()) == before

        await eventually(quiet, "it comes to rest")
        before = len(world.proxy.seen(ALL_WRITES))
        await asyncio.sleep(6)  # several resyncs and lists of this shortened world
        written = world.proxy.seen(ALL_WRITES)[before:]
    assert {call.resource for call in written} == {"leases"}


async def test_two_hundred_changes_in_a_second_are_few_reconciles_and_the_last_one_wins(world: World) -> None:
    """kopf#698, kopf#641."""
    operator = world.start_operator()
    await world.apply_version("v1", replicas=0)
    async with reported(world):

        async def seen() -> bool:
            return bool(await world.version_condition("chat-v1", "Ready"))

        await eventually(seen, "the version has a status")
        before = await reconciles(world)
        for number in range(200):
            patch = {"spec": {"slo": {"ttftMs": 1000 + number}}}
            found = await world.client.patch_merge(MODEL_VERSIONS, "chat-v1", world.namespace, patch)

        async def answered() -> bool:
            version = await world.client.get(MODEL_VERSIONS, "chat-v1", world.namespace)
            return bool(version["status"]["observedGeneration"] == found["metadata"]["generation"])

        await eventually(answered, "the last change is answered")
        assert await reconciles(world) - before < 150
        assert operator.is_running()


async def reconciles(world: World) -> int:
    _, metrics = await world.fetch(world.operators[0], "/metrics")
    return sum(int(float(count)) for count in re.findall(r"^tidewheel_reconcile_total\{.*\} (\S+)$", metrics, re.M))


async def test_the_rights_in_rbac_yaml_are_enough(world: World, installed: ControlPlane) -> None:
    """kopf#1104 and many others: rights are checked by the real authorizer, with nothing beside them."""
    kubeconfig = grant(world, installed, leave_out=())
    operator = world.start_operator(kubeconfig=kubeconfig)
    await world.apply_version("v1", replicas=2)
    await world.apply_rule(keep_previous_seconds=1, v1=100)
    async with reported(world):
        await eventually(lambda: world.settled({"v1": 10_000}, v1=2), "v1 serves")
        await world.apply_version("v1", replicas=1)
        await eventually(lambda: world.settled({"v1": 10_000}, v1=1), "v1 is smaller")
        await world.client.delete(MODEL_VERSIONS, "chat-v1", world.namespace)
        from tidewheel.clients.kubernetes import ROUTING_RULES

        await world.client.delete(ROUTING_RULES, "chat", world.namespace)

        async def gone() -> bool:
            return await world.find(MODEL_VERSIONS, "chat-v1") is None and not await world.services()

        await eventually(gone, "everything is gone")
        assert await world.fetch(operator, "/readyz") == (200, "ok\n")
        assert await world.fetch(operator, "/healthz") == (200, "ok\n")
        _, metrics = await world.fetch(operator, "/metrics")
    assert 'code="403"' not in metrics
    assert "tidewheel_operator_leader 1.0" in metrics
    assert "forbidden" not in operator.log.read_text().lower()


async def test_a_missing_right_is_named(world: World, installed: ControlPlane) -> None:
    operator = world.start_operator(kubeconfig=grant(world, installed, leave_out=("pods/status",)))
    async with reported(world):

        async def named() -> bool:
            status, words = await world.fetch(operator, "/readyz")
            return status == 503 and f"patch pods/status in {world.namespace}" in words

        await eventually(named, "/readyz names the right that is missing")
    assert "patch pods/status" in operator.log.read_text()


def grant(world: World, plane: ControlPlane, *, leave_out: tuple[str, ...]) -> Path:
    """A kubeconfig of an identity that may do what rbac.yaml says in the world's namespace."""
    user = f"operator-{secrets.token_hex(3)}"
    sections = yaml.safe_load(RULES_FILE.read_text())
    rules = [
        {**rule, "resources": resources}
        for rule in (*sections["serving"], *sections["own"])
        if (resources := [resource for resource in rule["resources"] if resource not in leave_out])
    ]
    metadata = {"name": user, "namespace": world.namespace}
    api = "rbac.authorization.k8s.io"
    plane.apply(
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "subjects": [{"kind": "User", "name": user, "apiGroup": api}],
            "roleRef": {"kind": "Role", "name": user, "apiGroup": api},
        },
    )
    return plane.kubeconfig_for(user, user=user)

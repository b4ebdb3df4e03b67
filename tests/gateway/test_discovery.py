"""Routing from a real API server, with faults between it and the gateway."""

import asyncio
import base64
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from tests.faults.proxy import ApiProxy, Cut, Mute, Refuse, Rewrite, calls
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.programs import Gateway, running_inside, table
from tests.gateway.upstreams import Upstream, says
from tests.gateway.wire import HI, ask
from tests.waiting import PATIENCE_SECONDS

from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.clients.errors import Invalid
from tidewheel.clients.kubernetes import (
    ENDPOINT_SLICES,
    NAMESPACES,
    ROUTING_TABLES,
    KubeClient,
    load_access,
)

pytestmark = pytest.mark.component

CRDS = Path(__file__).parents[2] / "crds"
FAST = ("--watch-silence", "2.5", "--api-retry-seconds", "0.2", "--first-list-timeout", "0.5")


def machine_address() -> str:
    """An address of this machine that is not loopback, which EndpointSlices refuse. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = probe.getsockname()[0]
        return address


@dataclass
class World:
    """One namespace on the API server, with one model."""

    client: KubeClient
    namespace: str

    async def put_table(self, weights: dict[str, int], **spec: Any) -> int:
        """Create or change the table; its generation."""
        body = table(weights=weights, namespace=self.namespace, **spec)
        body["metadata"] = {"name": "chat", "namespace": self.namespace}
        made = await self.client.apply(ROUTING_TABLES, body, field_manager="test", force=True)
        generation: int = made["metadata"]["generation"]
        return generation

    async def put_slice(self, version: str, *upstreams: Upstream, **conditions: bool) -> None:
        """Create or change a version's endpoints."""
        labels = {"tidewheel.dev/model": "chat", "tidewheel.dev/version": version, "tidewheel.dev/uid": "u"}
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"chat-{version}", "namespace": self.namespace, "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": upstreams[0].port if upstreams else 8000, "protocol": "TCP"}],
            "endpoints": [
                {
                    "addresses": [machine_address()],
                    "targetRef": {
                        "kind": "Pod",
                        "namespace": self.namespace,
                        "name": "p",
                        "uid": f"pod-{upstream.port}",
                    },
                    "conditions": {"ready": True, **conditions},
                }
                for upstream in upstreams
            ],
        }
        await self.client.apply(ENDPOINT_SLICES, body, field_manager="test", force=True)

    async def delete_table(self) -> None:
        """Delete it."""
        await self.client.delete(ROUTING_TABLES, "chat", self.namespace)


@pytest.fixture
async def world(control_plane: ControlPlane) -> AsyncIterator[World]:
    """A namespace of the test's own."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={CRDS}")
    async with KubeClient(load_access(kubeconfig=control_plane.kubeconfig), user_agent="test") as client:
        namespace = f"gateway-{secrets.token_hex(4)}"
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        yield World(client, namespace)


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[ApiProxy]:
    """Between the gateway and the API server."""
    with ApiProxy(load_access(kubeconfig=control_plane.kubeconfig)) as opened:
        yield opened


@pytest.fixture
def follow(start: StartGateway, proxy: ApiProxy, world: World, tmp_path: Path) -> StartGateway:
    """Starts a gateway that follows the world through the proxy."""
    kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")

    async def start_one(*arguments: str, **options: Any) -> Gateway:
        return await start(
            "--kubeconfig", str(kubeconfig), "--namespace", world.namespace, *FAST, *arguments, **options
        )

    return start_one


@pytest.fixture
async def engines(start_upstream: StartUpstream) -> dict[str, Upstream]:
    """One engine a version, reachable from other hosts as pods are."""
    return {version: await start_upstream(says(version), host="0.0.0.0") for version in ("v1", "v2")}


async def eventually(holds: Callable[[], Awaitable[bool]], *, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for the world to be so."""
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.02)


async def obeyed(gateway: Gateway, world: World) -> int | None:
    """The generation that the gateway says it obeys."""
    status, body = await gateway.get(f"/routing/{world.namespace}/chat", admin=True)
    return body["generation"] if status == 200 else None


async def until_obeyed(gateway: Gateway, world: World, generation: int | None) -> None:
    async def holds() -> bool:
        return await obeyed(gateway, world) == generation

    await eventually(holds)


async def answered_by(gateway: Gateway) -> str | None:
    """The version that answers now; None if none does."""
    status, headers, _ = await ask(gateway, HI)
    return headers["x-tidewheel-version"] if status == 200 else None


async def until_answered_by(gateway: Gateway, version: str | None) -> None:
    async def holds() -> bool:
        return await answered_by(gateway) == version

    await eventually(holds)


async def test_tables_and_endpoints_are_followed_without_a_call_per_request(
    follow: StartGateway, proxy: ApiProxy, world: World, engines: dict[str, Upstream]
) -> None:
    """AIBrix#2281, #2313."""
    gateway = await follow()
    assert (await ask(gateway, HI))[0] == 404
    await world.put_slice("v1", engines["v1"])
    await eventually(lambda: has_status(gateway, 503, "no_routing_table"))
    generation = await world.put_table({"v1": 10_000, "v2": 0})
    await until_obeyed(gateway, world, generation)
    before = len(proxy.calls)
    for _ in range(50):
        assert await answered_by(gateway) == "v1"
    assert len(proxy.calls) - before <= 4  # watches that ended by themselves
    await world.put_table({"v1": 0, "v2": 10_000})
    await eventually(lambda: has_status(gateway, 503, "no_ready_replica"))
    await world.put_slice("v2", engines["v2"])
    await until_answered_by(gateway, "v2")
    await world.put_slice("v2", engines["v2"], terminating=True, serving=True)
    await eventually(lambda: has_status(gateway, 503, "no_ready_replica"))
    await world.put_slice("v2", engines["v2"], ready=False)
    await world.put_slice("v2", engines["v2"])
    await until_answered_by(gateway, "v2")
    assert (
        await gateway.value("tidewheel_routing_generation", namespace=world.namespace, model="chat") == generation + 1
    )
    await world.delete_table()
    await eventually(lambda: has_status(gateway, 503, "no_routing_table"))
    age = await gateway.value("tidewheel_discovery_age_seconds")
    assert age is not None
    assert age < 30


async def has_status(gateway: Gateway, status: int, code: str) -> bool:
    got, _, body = await ask(gateway, HI)
    return got == status and orjson.loads(body)["error"]["code"] == code


async def test_what_was_deleted_while_the_watch_was_cut_is_gone(
    follow: StartGateway, proxy: ApiProxy, world: World, engines: dict[str, Upstream]
) -> None:
    """production-stack#1091."""
    await world.put_table({"v1": 10_000})
    await world.put_slice("v1", engines["v1"])
    gateway = await follow()
    await until_answered_by(gateway, "v1")
    proxy.inject(calls("list", "watch"), Refuse(503), times=None)
    proxy.break_streams()
    await world.delete_table()
    await world.client.delete(ENDPOINT_SLICES, "chat-v1", world.namespace)
    assert await answered_by(gateway) == "v1"  # the last known good
    proxy.clear()
    await eventually(lambda: has_status(gateway, 404, "model_not_found"))


async def test_an_expired_watch_leads_to_a_fresh_list_and_no_loop(
    follow: StartGateway, proxy: ApiProxy, world: World, engines: dict[str, Upstream]
) -> None:
    """production-stack#228, #999."""
    await world.put_table({"v1": 10_000})
    await world.put_slice("v1", engines["v1"])
    gateway = await follow()
    await until_answered_by(gateway, "v1")
    lists = len(proxy.seen(calls("list", resource="routingtables")))
    proxy.inject(calls("watch", resource="routingtables"), Refuse(410))
    proxy.break_streams()
    generation = await world.put_table({"v1": 9_000, "v2": 1_000})
    await until_obeyed(gateway, world, generation)
    assert len(proxy.seen(calls("list", resource="routingtables"))) - lists <= 3


async def test_a_watch_that_went_silent_is_noticed(
    follow: StartGateway, proxy: ApiProxy, world: World, engines: dict[str, Upstream]
) -> None:
    """kopf#957: the connection stays open and says nothing. 2.5 s here, 25 s by default."""
    generation = await world.put_table({"v1": 10_000})
    gateway = await follow()
    await until_obeyed(gateway, world, generation)
    proxy.inject(calls("watch"), Mute())
    generation = await world.put_table({"v1": 9_000, "v2": 1_000})
    await until_obeyed(gateway, world, generation)


async def test_with_the_api_server_away_nothing_changes_and_on_its_return_everything_is_caught_up(
    follow: StartGateway, proxy: ApiProxy, world: World, engines: dict[str, Upstream]
) -> None:
    await world.put_table({"v1": 10_000})
    await world.put_slice("v1", engines["v1"])
    await world.put_slice("v2", engines["v2"])
    gateway = await follow()
    await until_answered_by(gateway, "v1")
    proxy.inject(calls(), Cut(), times=None)
    proxy.break_streams()
    generation = await world.put_table({"v2": 10_000})

    async def has_aged() -> bool:
        assert await answered_by(gateway) == "v1"
        return (await gateway.value("tidewheel_discovery_age_seconds") or 0) > 3

    await eventually(has_aged)
    proxy.clear()
    await until_obeyed(gateway, world, generation)
    assert await answered_by(gateway) == "v2"


async def test_a_start_without_the_api_server_serves_by_the_last_known_good(
    follow: StartGateway,
    control_plane: ControlPlane,
    proxy: ApiProxy,
    world: World,
    engines: dict[str, Upstream],
    tmp_path: Path,
) -> None:
    await world.put_table({"v1": 10_000})
    await world.put_slice("v1", engines["v1"])
    state = ("--state-dir", str(tmp_path / "state"))
    kubeconfig = ("--kubeconfig", str(control_plane.kubeconfig), "--namespace", world.namespace)
    async with running_inside(*kubeconfig, *FAST, *state) as first:
        await until_answered_by(first, "v1")
        await eventually(lambda: exists(tmp_path / "state" / "routing.json"))
    proxy.inject(calls(), Refuse(503), times=None)
    gateway = await follow(*state)
    assert await answered_by(gateway) == "v1"
    assert (await gateway.get("/routing", admin=True))[1]["staleSince"] is not None
    generation = await world.put_table({"v1": 5_000, "v2": 5_000})
    proxy.clear()
    await until_obeyed(gateway, world, generation)
    await eventually(lambda: is_fresh(gateway))


async def exists(path: Path) -> bool:
    return path.exists()


async def is_fresh(gateway: Gateway) -> bool:
    return (await gateway.get("/routing", admin=True))[1]["staleSince"] is None


async def test_a_start_with_nothing_known_is_not_ready_until_the_first_list(
    follow: StartGateway, proxy: ApiProxy, world: World, engines: dict[str, Upstream], tmp_path: Path
) -> None:
    await world.put_table({"v1": 10_000})
    await world.put_slice("v1", engines["v1"])
    proxy.inject(calls(), Refuse(503), times=None)
    gateway = await follow("--state-dir", str(tmp_path / "state"), ready=False)
    await gateway.wait_for_log("no last known good routing")
    assert (await gateway.get("/readyz"))[0] == 503
    assert (await gateway.get("/healthz"))[0] == 200
    assert await has_status(gateway, 503, "not_ready")
    proxy.clear()
    await gateway.until_ready()
    assert await answered_by(gateway) == "v1"


async def test_a_stale_list_with_a_lower_generation_is_not_obeyed(
    follow: StartGateway, proxy: ApiProxy, world: World
) -> None:
    first = await world.put_table({"v1": 10_000})
    old = (await world.client.get(ROUTING_TABLES, "chat", world.namespace))["metadata"]["resourceVersion"]
    second = await world.put_table({"v2": 10_000})
    gateway = await follow()
    await until_obeyed(gateway, world, second)
    stale = Rewrite({"resourceVersion": old, "resourceVersionMatch": "Exact", "limit": "0"})
    proxy.inject(calls("list", resource="routingtables"), stale)
    proxy.inject(calls("watch", resource="routingtables"), Refuse(410))
    proxy.break_streams()
    await gateway.wait_for_log("seen at a lower generation")
    for _ in range(10):
        assert await obeyed(gateway, world) == second > first
    assert await gateway.value("tidewheel_routing_generation_regressions_total") == 0


async def test_a_restore_of_etcd_is_confirmed_obeyed_and_alerted_on(
    follow: StartGateway, control_plane: ControlPlane, world: World
) -> None:
    first = await world.put_table({"v1": 10_000})
    etcd = f"http://127.0.0.1:{control_plane.endpoints.etcd_port}/v3/kv"
    key = base64.b64encode(f"/registry/tidewheel.dev/routingtables/{world.namespace}/chat".encode()).decode()
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{etcd}/range", json={"key": key}) as answer:
            stored = (await answer.json())["kvs"][0]["value"]
        second = await world.put_table({"v2": 10_000})
        gateway = await follow()
        await until_obeyed(gateway, world, second)
        async with session.post(f"{etcd}/put", json={"key": key, "value": stored}) as answer:
            assert answer.status == 200
    await until_obeyed(gateway, world, first)
    assert await gateway.value("tidewheel_routing_generation_regressions_total") == 1
    await gateway.wait_for_log("went back from generation")


async def test_a_table_that_is_not_valid_leaves_the_last_one_in_force(follow: StartGateway, world: World) -> None:
    generation = await world.put_table({"v1": 10_000})
    gateway = await follow()
    await until_obeyed(gateway, world, generation)
    warm = {"version": "v2", "digest": "d2", "weight": 1, "until": "2999-01-01T00:00:00Z"}
    await world.put_table({"v1": 10_000}, keepWarm=[warm])
    await until_obeyed(gateway, world, generation + 1)
    with pytest.raises(Invalid):
        await world.put_table({"v1": 9_999})
    assert await obeyed(gateway, world) == generation + 1


async def test_the_gateway_s_own_role_is_enough(
    start: StartGateway, control_plane: ControlPlane, world: World, engines: dict[str, Upstream], tmp_path: Path
) -> None:
    """get, list and watch of tables and slices in the namespaces served, nothing else."""
    user, rules = (
        f"gateway-{world.namespace}",
        [
            {"apiGroups": ["tidewheel.dev"], "resources": ["routingtables"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
        ],
    )
    named = {"metadata": {"name": "gateway", "namespace": world.namespace}}
    rbac = "rbac.authorization.k8s.io"
    subjects = [{"kind": "User", "name": user, "apiGroup": rbac}]
    role = {"kind": "Role", "name": "gateway", "apiGroup": rbac}
    control_plane.apply(
        {"apiVersion": f"{rbac}/v1", "kind": "Role", **named, "rules": rules},
        {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", **named, "roleRef": role, "subjects": subjects},
    )
    kubeconfig = control_plane.kubeconfig_for(user, user=user, path=tmp_path / "gateway.kubeconfig")
    await world.put_table({"v1": 10_000})
    await world.put_slice("v1", engines["v1"])
    gateway = await start("--kubeconfig", str(kubeconfig), "--namespace", world.namespace)
    await until_answered_by(gateway, "v1")

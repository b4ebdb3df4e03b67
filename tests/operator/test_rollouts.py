"""Rollouts on a real API server: progress that its schema keeps, steps that a stand-in gateway confirms, a judge that
asks over HTTP, an operator that is killed. Times are seconds instead of minutes.
"""

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.http_servers import QuietHandler, http_server
from tests.operator.rollouts.provider import Counters, served
from tests.operator.world import World, eventually, reported

from tidewheel.clients.kubernetes import ENDPOINT_SLICES, ROUTING_RULES, ROUTING_TABLES, KubeObject
from tidewheel.clients.resources import CONFIG_MAPS
from tidewheel.crds.names import LEDGER_KEY, ledger_name
from tidewheel.rollout.ledger.codec import from_text

pytestmark = pytest.mark.component

SERVICE = "gateways"
JUDGE = {"blockSeconds": 1, "scrapeSeconds": 0.25, "cacheWarmSeconds": 0, "minLatencyBlocks": 2, "maxAgeScrapes": 8}
ROLLOUT = {
    "steps": [{"percent": 20}, {"percent": 100}],
    "bakeSeconds": 3,
    "tickSeconds": 1,
    "confirmSeconds": 2,
    "judge": JUDGE,
}


class Gateway:
    """What it was told last; ``port`` is where it says so."""

    port: int

    def __init__(self) -> None:
        self.obeyed: dict[str, Any] = {}

    def obey(self, table: KubeObject) -> None:
        self.obeyed = {"uid": table["metadata"]["uid"], "generation": table["metadata"]["generation"]}


@contextlib.contextmanager
def gateway() -> Iterator[Gateway]:
    """Answers ``/routing``, on an address that an EndpointSlice may name."""
    made = Gateway()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            body = json.dumps(made.obeyed).encode()
            self.send_response(200 if made.obeyed else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_server(Handler, host="0.0.0.0") as url:
        made.port = int(url.rpartition(":")[2])
        yield made


def own_address() -> str:
    """An address of this host that is no loopback; the API server refuses those in an EndpointSlice."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


@contextlib.asynccontextmanager
async def rollout_world(world: World, counters: Counters, *, replicas: int = 1, **flags: str) -> AsyncIterator[Gateway]:
    """v42 serves, v43 is there; one gateway, which obeys when it is told to; Prometheus says what counters say."""
    with gateway() as made, served(counters) as prometheus:
        await world.client.create(
            ENDPOINT_SLICES,
            {
                "metadata": {
                    "name": f"{SERVICE}-1",
                    "namespace": world.namespace,
                    "labels": {"kubernetes.io/service-name": SERVICE},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": [own_address()], "targetRef": {"kind": "Pod", "name": "gateway-a"}}],
                "ports": [{"name": "admin", "port": made.port}],
            },
        )
        world.rollout_flags = {  # type: ignore[attr-defined]
            "prometheus_url": prometheus,
            "gateway_service": SERVICE,
            "gateway_port": str(made.port),
            "confirm_poll_seconds": "0.1",
            "judge_retry_seconds": "0.3",
            **flags,
        }
        start(world)
        await world.apply_version("v42", replicas=replicas)
        await apply_rule(world, v42=100)
        await world.apply_version("v43", replicas=replicas)
        async with reported(world):
            await until_split(world, made, v42=10_000)
            yield made


def start(world: World) -> Any:
    return world.start_operator(**world.rollout_flags)  # type: ignore[attr-defined]


async def apply_rule(world: World, **percents: int) -> None:
    traffic = [{"version": version, "percent": percent} for version, percent in percents.items()]
    spec = {"model": "chat", "traffic": traffic, "rollout": ROLLOUT}
    await world.client.apply(
        ROUTING_RULES, {"metadata": {"name": "chat", "namespace": world.namespace}, "spec": spec}, force=True
    )


async def until_split(world: World, made: Gateway, **split: int) -> None:
    async def there() -> bool:
        table = await world.client.get(ROUTING_TABLES, "chat", world.namespace)
        made.obey(table)
        present = {target["version"]: target["weight"] for target in table["spec"]["targets"]}
        assert present == split, f"{present}, {await rollout(world)}"
        return True

    await eventually(there, f"the split {split}")


async def rollout(world: World) -> dict[str, Any]:
    found = await world.find(ROUTING_RULES, "chat")
    status: dict[str, Any] = ((found or {}).get("status") or {}).get("rollout") or {}
    return status


async def until_rollout(world: World, what: str, **wanted: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    async def there() -> bool:
        nonlocal seen
        seen = await rollout(world)
        assert {name: seen.get(name) for name in wanted} == wanted, seen
        return True

    await eventually(there, what)
    return seen


async def until_judged(world: World) -> dict[str, Any]:
    """In mid-bake, with numbers; the counters must be quiet, or it may have gone on before anybody looks."""
    seen: dict[str, Any] = {}

    async def there() -> bool:
        nonlocal seen
        seen = await rollout(world)
        assert seen.get("phase") == "Baking", seen
        return bool(seen.get("metrics"))

    await eventually(there, "the first step is judged")
    return seen


async def test_a_healthy_version_is_promoted_on_evidence_and_its_progress_is_kept(world: World) -> None:
    """zalando-incubator/kopf#308: a status that a schema prunes."""
    counters = Counters()
    async with rollout_world(world, counters) as made:
        counters.quiet = True
        await apply_rule(world, v42=0, v43=100)
        await until_split(world, made, v42=8_000, v43=2_000)
        seen = await until_judged(world)
        counters.quiet = False
        assert seen["progress"] == "1/2"
        assert seen["from"] == {"v42": 10_000}
        assert seen["to"] == {"v43": 10_000}
        assert {metric["name"] for metric in seen["metrics"]} >= {"errors", "tpot", "ttft", "stalls"}
        assert seen["report"][0].startswith("step 1/2  20.00%")
        await until_split(world, made, v43=10_000)
        ended = await until_rollout(world, "promoted", outcome="Promoted", progress="Promoted")
        assert ended["lastGood"]["version"] == "v43"
        assert "heldSince" not in ended

        async def kept() -> bool:
            found = await world.client.get(CONFIG_MAPS, ledger_name("chat"), world.namespace)
            reasons = [entry.reason for entry in from_text(found["data"][LEDGER_KEY]).transitions]
            assert reasons[-1] == "Promoted", reasons
            return "StepPassed" in reasons[:-1]

        await eventually(kept, "the ledger has the whole story")


async def test_a_failing_version_is_rolled_back_and_rejected(world: World) -> None:
    counters = Counters()
    async with rollout_world(world, counters) as made:
        counters.failing = 0.2
        await apply_rule(world, v42=0, v43=100)
        await until_split(world, made, v42=8_000, v43=2_000)
        await until_rollout(world, "rejected", outcome="Rejected", verdict="BREACH")
        assert await world.split() == {"v42": 10_000}

        async def said() -> bool:
            return (await world.rule_condition("chat", "Degraded")).get("reason") == "VersionRejected"

        await eventually(said, "the rule says that the version was rejected")


async def test_without_prometheus_a_rollout_holds_and_goes_on_when_it_is_back(world: World) -> None:
    counters = Counters()
    async with rollout_world(world, counters) as made:
        counters.away = "no route"
        await apply_rule(world, v42=0, v43=100)
        await until_split(world, made, v42=8_000, v43=2_000)
        seen = await until_rollout(world, "it is blind", verdict="BLIND")
        assert seen["bakedSeconds"] == 0
        assert await world.split() == {"v42": 8_000, "v43": 2_000}
        counters.away = ""
        await until_split(world, made, v43=10_000)


async def test_a_gateway_that_is_silent_holds_the_weight_and_is_named(world: World) -> None:
    async with rollout_world(world, Counters()) as made:
        await apply_rule(world, v42=0, v43=100)

        async def there() -> bool:
            return await world.split() == {"v42": 8_000, "v43": 2_000}

        await eventually(there, "the weight is written")

        async def named() -> bool:
            found = await world.rule_condition("chat", "Degraded")
            return found.get("reason") == "GatewaysNotConfirming" and "gateway-a" in found["message"]

        await eventually(named, "the gateway is named")
        assert (await rollout(world))["phase"] == "Confirming"
        await until_split(world, made, v43=10_000)


async def test_an_operator_killed_in_mid_bake_goes_on_with_the_same_rollout(world: World) -> None:
    counters = Counters()
    async with rollout_world(world, counters) as made:
        counters.quiet = True
        await apply_rule(world, v42=0, v43=100)
        await until_split(world, made, v42=8_000, v43=2_000)
        before = await until_judged(world)
        world.operators[-1].kill()
        counters.quiet = False
        start(world)
        await until_split(world, made, v43=10_000)
        after = await until_rollout(world, "promoted", outcome="Promoted")
        assert after["id"] == before["id"]

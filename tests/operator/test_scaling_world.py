"""Scaling with a real operator and a real API server; Prometheus is a small server that says what the test wants."""

import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from tests.operator.world import World, eventually, reported

from tidewheel.clients.errors import ApiError
from tidewheel.clients.kubernetes import MODEL_VERSIONS, ROUTING_TABLES
from tidewheel.clients.resources import CONFIG_MAPS

pytestmark = pytest.mark.component

QUICK = {
    "scaling_period_seconds": "1",
    "scaling_window_seconds": "5",
    "scaling_step_seconds": "5",
    "cold_start_prior_seconds": "1",
    "ladder_period_seconds": "1",
    "ladder_minimum_seconds": "1",
    "profile_save_seconds": "2",
    # One operator, and a machine that may be busy: nobody takes the Lease away here.
    "lease_seconds": "60",
    "renew_deadline_seconds": "50",
}
ONE = 1_000.0
"""Output tokens a second of a replica of which nothing is known: these engines have no step times."""


class Prometheus:
    """Answers queries about one model; while ``is_silent`` it answers 503. ``past`` are rates by moment."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.output_rate = 0.0
        self.is_silent = False
        self.past: dict[int, float] = {}
        self.url = ""

    async def answer_span(self, request: web.Request) -> web.Response:
        if self.is_silent:
            return web.Response(status=503, text="gone")
        query = request.query["query"]
        begin, end, step = (int(request.query[name]) for name in ("start", "end", "step"))
        moments = [at for at in range(begin, end + 1, step) if at in self.past]
        if not moments:
            series = []
        elif query.startswith("sum by (kind)"):
            values = [[at, str(self.past[at])] for at in moments]
            series = [({"kind": kind}, values) for kind in ("prompt", "output")]
        elif query.startswith("count"):
            series = [({}, [[at, "2"] for at in moments])]
        else:
            series = []
        result = [{"metric": metric, "values": values} for metric, values in series]
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})

    async def answer(self, request: web.Request) -> web.Response:
        if self.is_silent:
            return web.Response(status=503, text="gone")
        query = request.query.get("query", "")
        labels = {"namespace": self.namespace, "model": "chat"}
        if "tidewheel_offered_tokens_total" in query and query.startswith("sum"):
            values = [({**labels, "kind": kind}, self.output_rate) for kind in ("prompt", "output")]
        elif query.startswith("count"):
            values = [(labels, 2.0)]
        else:
            values = []
        result = [{"metric": metric, "value": [0, str(value)]} for metric, value in values]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


@pytest.fixture
async def prometheus(world: World) -> AsyncIterator[Prometheus]:
    stand_in = Prometheus(world.namespace)
    app = web.Application()
    app.router.add_get("/api/v1/query", stand_in.answer)
    app.router.add_get("/api/v1/query_range", stand_in.answer_span)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield stand_in
    await runner.cleanup()


async def _serve(world: World, prometheus: Prometheus, **scaling: object) -> None:
    world.start_operator(prometheus_url=prometheus.url, **QUICK)
    bounds = {"minReplicas": 1, "maxReplicas": 9, "spare": 0, "holdSeconds": 1, **scaling}
    await world.apply_version("v1", scaling=bounds)
    await world.apply_rule(v1=100)
    await _serving(world, 1)


async def _serving(world: World, count: int) -> None:
    async def there() -> bool:
        assert len(await world.serving_pods("v1")) == count
        return True

    await eventually(there, f"{count} replicas serve")


async def _scaling(world: World) -> dict[str, object]:
    found = await world.client.get(MODEL_VERSIONS, "chat-v1", world.namespace)
    status: dict[str, object] = found["status"]["scaling"]
    return status


async def test_replicas_follow_demand_freeze_while_it_is_unknown_and_what_was_learnt_is_saved(
    world: World, prometheus: Prometheus
) -> None:
    async with reported(world):
        await _serve(world, prometheus)
        prometheus.output_rate = 3 * ONE
        await _serving(world, 4)  # 3 x 1.2 margin

        async def told() -> bool:
            status = (await world.client.get(MODEL_VERSIONS, "chat-v1", world.namespace))["status"]
            assert status["capacity"]["source"] == "prior"
            assert status["coldStart"]["samples"]
            return status["forecastReplicas"] >= 3

        await eventually(told, "the status says what is forecast, and how long starts took")

        prometheus.is_silent, prometheus.output_rate = True, 0.0

        async def blind() -> bool:
            return (await _scaling(world))["binding"] == "blind"

        await eventually(blind, "the status says that demand is not known")
        assert len(await world.serving_pods("v1")) == 4

        prometheus.is_silent = False

        async def fewer() -> bool:
            # How fast it falls depends on how long it was high, and that on the machine.
            return len(await world.serving_pods("v1")) < 4

        await eventually(fewer, "demand is known again, and the size follows it", within=240)

        async def saved() -> bool:
            body = await world.client.get(CONFIG_MAPS, "chat-demand-profile", world.namespace)
            profile = json.loads(body["data"]["profile"])
            return profile["stepSeconds"] == 5 and any(value for value in profile["decode"])

        await eventually(saved, "the profile is saved")


async def test_at_the_budget_the_rung_is_in_the_table_and_goes_again(world: World, prometheus: Prometheus) -> None:
    async with reported(world):
        await _serve(world, prometheus, gpuBudget=1)
        prometheus.output_rate = 3 * ONE

        async def rung(above: bool) -> bool:
            table = await world.client.get(ROUTING_TABLES, "chat", world.namespace)
            return (table["spec"].get("rung", 0) > 0) is above

        await eventually(lambda: rung(True), "the ladder climbs")
        assert len(await world.serving_pods("v1")) == 1

        async def said() -> bool:
            status = await _scaling(world)
            return status["binding"] == "GPU budget" and int(str(status["shortfall"])) >= 2

        await eventually(said, "the status publishes the shortfall")
        prometheus.output_rate = 0.1 * ONE
        await eventually(lambda: rung(False), "the ladder comes down")


async def test_a_second_writer_of_replicas_is_refused_by_the_api_server_in_words(
    world: World, prometheus: Prometheus
) -> None:
    """kubernetes/kubernetes#101648, #94585: `kubectl scale`, an HPA, or a manifest with `replicas: 1` at the peak."""
    async with reported(world):
        await _serve(world, prometheus)
        with pytest.raises(ApiError, match="replicas and scaling exclude each other"):
            await world.client.patch_merge(
                MODEL_VERSIONS, "chat-v1", world.namespace, {"spec": {"replicas": 1}}, subresource="scale"
            )
        with pytest.raises(ApiError, match="replicas and scaling exclude each other"):
            await world.client.patch_merge(MODEL_VERSIONS, "chat-v1", world.namespace, {"spec": {"replicas": 1}})

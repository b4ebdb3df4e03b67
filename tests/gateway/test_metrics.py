"""The metrics contract: names, edges, series that exist at 0 and go with their version."""

import asyncio
import itertools
from pathlib import Path

import pytest
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.programs import table, write_routing
from tests.gateway.upstreams import DONE, Call, chat_event, chat_stream, says, streams, usage_event
from tests.gateway.wire import HI, ask

from tidewheel.gateway.metrics import TPOT_EDGES, TTFT_EDGES, Metrics
from tidewheel.gateway.snapshot import Snapshot, VersionKey, parse_snapshot

STREAM = {**HI, "stream": True}
CONTRACT = {
    "tidewheel_requests_total": {"namespace", "model", "version", "cohort", "code_class", "tier"},
    "tidewheel_request_errors_total": {"namespace", "model", "version", "cohort", "reason"},
    "tidewheel_ttft_seconds_bucket": {"namespace", "model", "version", "cohort", "le"},
    "tidewheel_tpot_seconds_bucket": {"namespace", "model", "version", "cohort", "le"},
    "tidewheel_over_slo_total": {"namespace", "model", "version", "cohort", "metric"},
    "tidewheel_offered_tokens_total": {"namespace", "model", "version", "kind", "outcome"},
    "tidewheel_stream_stalls_total": {"namespace", "model", "version"},
    "tidewheel_streams_open": {"namespace", "model", "version"},
    "tidewheel_in_flight": {"namespace", "model", "version"},
    "tidewheel_prompt_tokens_bucket": {"namespace", "model", "version", "le"},
    "tidewheel_output_tokens_bucket": {"namespace", "model", "version", "le"},
    "tidewheel_queue_depth": {"namespace", "model", "version", "lane"},
    "tidewheel_queue_wait_seconds_bucket": {"namespace", "model", "version", "lane", "le"},
    "tidewheel_cached_prompt_tokens_total": {"namespace", "model", "version"},
    "tidewheel_routing_generation": {"namespace", "model"},
    "tidewheel_discovery_age_seconds": set(),
}


@pytest.mark.parametrize("edges", [TTFT_EDGES, TPOT_EDGES], ids=["ttft", "tpot"])
def test_edges_are_a_constant_factor_apart(edges: tuple[float, ...]) -> None:
    ratios = [high / low for low, high in itertools.pairwise(edges[:-1])]
    assert ratios == pytest.approx([1.2 ** (1 / 3)] * len(ratios), rel=1e-4)
    assert edges[-1] <= edges[-2] * 1.2 ** (1 / 3) * 1.0001


@pytest.mark.component
async def test_a_version_has_its_series_at_zero_before_its_first_request(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    gateway = await serve({"v1": [await start_upstream(says("hi"))], "v2": []}, weights={"v1": 10_000, "v2": 0})
    samples = await gateway.samples()
    for name, labels in CONTRACT.items():
        found = [dict(items) for known, items in samples if known == name]
        assert found, name
        assert all(set(items) == labels for items in found), name
        if "version" in labels:
            assert {items["version"] for items in found} >= {"v1", "v2"}, name
            assert all(value == 0 for (known, _), value in samples.items() if known == name)
    assert await gateway.value("tidewheel_routing_generation", model="chat") == 1


@pytest.mark.component
async def test_a_stream_is_counted_once_everywhere(start_upstream: StartUpstream, serve: StartGateway) -> None:
    events = [*chat_stream("one", "two", "three")[:-1], usage_event(9, 3), DONE]
    gateway = await serve({"v1": [await start_upstream(streams(events))]})
    assert (await ask(gateway, STREAM))[0] == 200
    await gateway.until("tidewheel_requests_total", 1, code_class="2xx", version="v1", cohort="rest")
    assert await gateway.value("tidewheel_ttft_seconds_count") == 1
    assert await gateway.value("tidewheel_tpot_seconds_count") == 1
    assert await gateway.value("tidewheel_offered_tokens_total", kind="prompt", outcome="completed") == 9
    assert await gateway.value("tidewheel_offered_tokens_total", kind="output", outcome="completed") == 3
    assert await gateway.value("tidewheel_output_tokens_sum") == 3
    assert await gateway.value("tidewheel_over_slo_total") == 0


@pytest.mark.component
async def test_slow_replies_are_over_the_version_s_own_slo(
    start_upstream: StartUpstream, start: StartGateway, tmp_path: Path
) -> None:
    async def slow(call: Call) -> None:
        call.begin_stream()
        for event in (chat_event("one"), chat_event("two"), chat_event("three"), DONE):
            await asyncio.sleep(0.03)
            call.chunk(event)
        call.end_chunks()

    upstream = await start_upstream(slow)
    body = table(weights={"v1": 10_000})
    body["spec"]["targets"][0]["slo"] = {"ttftMs": 10, "tpotMs": 10}
    path = write_routing(tmp_path / "routing.json", [body], {"default/chat-v1": [upstream.address]})
    gateway = await start("--static", str(path), "--stall-seconds", "0.02")
    await ask(gateway, STREAM)
    await gateway.until("tidewheel_over_slo_total", 1, metric="ttft")
    assert await gateway.value("tidewheel_over_slo_total", metric="tpot") == 1
    assert await gateway.value("tidewheel_stream_stalls_total") == 2


@pytest.mark.component
async def test_a_pinned_request_is_held_to_the_slo_of_the_version_it_reaches(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    async def slow(call: Call) -> None:
        await asyncio.sleep(0.05)
        await streams([chat_event("one"), DONE])(call)

    upstreams = {"v1": [await start_upstream(says("hi"))], "v2": [await start_upstream(slow)]}
    warm = {"version": "v2", "digest": "d", "weight": 1, "until": "2999-01-01T00:00:00Z", "slo": {"ttftMs": 10}}
    gateway = await serve(upstreams, weights={"v1": 10_000}, keepWarm=[warm])
    assert (await ask(gateway, STREAM, "x-version-pin: v2"))[0] == 200
    await gateway.until("tidewheel_over_slo_total", 1, version="v2", cohort="pinned", metric="ttft")


@pytest.mark.component
async def test_clients_cannot_make_series(start_upstream: StartUpstream, serve: StartGateway) -> None:
    """litellm#27272, Cogtrix#487."""
    gateway = await serve({"v1": [await start_upstream(says("hi"))]})
    await ask(gateway, {**HI, "model": "odd"})
    before = len(await gateway.samples())
    for number in range(30):
        await ask(gateway, {**HI, "model": f"odd-{number}", "user": f"user-{number}"})
        await ask(gateway, {**HI, "user": f"user-{number}"}, f"x-conversation-id: c-{number}")
        await gateway.get(f"/odd/{number}")
    assert len(await gateway.samples()) == before
    assert await gateway.value("tidewheel_requests_total", version="", code_class="4xx") == 31


@pytest.mark.component
async def test_a_client_that_went_away_is_no_error_of_the_version(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    async def wait(call: Call) -> None:
        await asyncio.Event().wait()

    gateway = await serve({"v1": [await start_upstream(wait)]})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await ask(gateway, STREAM)
    await gateway.until("tidewheel_requests_total", 1, version="v1", code_class="4xx")
    assert await gateway.value("tidewheel_request_errors_total") == 0


def test_series_go_with_their_version_once_nothing_is_open_on_it() -> None:
    def series(metrics: Metrics) -> set[str]:
        samples = (sample for family in metrics.registry.collect() for sample in family.samples)
        return {sample.labels["version"] for sample in samples if "version" in sample.labels}

    with_two = parse_snapshot(
        {"tables": [table(weights={"v1": 9_000, "v2": 1_000})]}, observed_at="2026-01-01T00:00:00Z"
    )
    metrics = Metrics()
    metrics.follow(with_two)
    assert series(metrics) == {"v1", "v2"}
    with metrics.of(VersionKey("default", "chat", "v2")).one_in_flight(stream=True):
        metrics.follow(Snapshot())
        assert series(metrics) == {"v2"}
    metrics.follow(Snapshot())
    assert series(metrics) == set()
    metrics.follow(with_two)
    assert series(metrics) == {"v1", "v2"}

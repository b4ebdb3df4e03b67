"""The whole policy through a gateway: keys, quotas, lanes and the ladder, as clients see them."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.gateway.admission.conftest import authorization, load_of, reporting
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.programs import table, write_routing
from tests.gateway.upstreams import Call, chat_event, chat_reply, pauses, replies, says, usage_event
from tests.gateway.wire import HI, ask, post
from tests.waiting import eventually

from tidewheel.crds.routingtable import Relief
from tidewheel.gateway.admission.ladder import steer, wait_for
from tidewheel.gateway.errors import GatewayError

STREAM = {**HI, "stream": True}


async def test_without_a_key_file_everybody_is_the_same_free_user(
    serve: StartGateway, start_upstream: StartUpstream
) -> None:
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]})
    assert (await ask(gateway, HI, "x-tidewheel-tenant: root", "x-tidewheel-lane: paid"))[0] == 200
    call = upstream.calls[0]
    assert call.headers["x-tidewheel-lane"] == "free", "a client's own copies are stripped"
    assert "x-tidewheel-tenant" not in call.headers
    assert await gateway.value("tidewheel_requests_total", tier="free", code_class="2xx") == 1


async def test_a_key_opens_and_engines_hear_of_lane_and_tenant_but_not_of_the_key(
    serve: StartGateway, start_upstream: StartUpstream, key_file: Path
) -> None:
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]}, "--key-file", str(key_file))
    status, headers, body = await ask(gateway, HI)
    assert (status, orjson.loads(body)["error"]["code"]) == (401, "missing_key")
    assert headers["www-authenticate"].startswith("Bearer")
    assert (await ask(gateway, HI, authorization("alice")))[0] == 200
    sent = upstream.calls[0].headers
    assert sent["x-tidewheel-lane"] == "paid"
    assert len(sent["x-tidewheel-tenant"]) == 24
    assert "alice" not in str(sent)
    assert (await gateway.get("/v1/models"))[0] == 401
    assert (await gateway.get("/readyz"))[0] == 200


async def test_tokens_are_reserved_refunded_and_told(
    serve: StartGateway, start_upstream: StartUpstream, key_file: Path
) -> None:
    """ai-gateway#1754: after each call the header is the bucket."""
    upstream = await start_upstream(replies(200, chat_reply("hi")))
    tiers = {"free": {"tokensPerMinute": 1000, "requestsPerMinute": 10, "maxOutputTokens": 200}}
    gateway = await serve({"v1": [upstream]}, "--key-file", str(key_file), tiers=tiers)
    _, headers, _ = await ask(gateway, HI, authorization("bob"))
    reserved = 1000 - int(headers["x-ratelimit-remaining-tokens"])
    assert 200 < reserved < 300
    assert orjson.loads(upstream.calls[0].body)["max_tokens"] == 200
    _, headers, _ = await ask(gateway, {**HI, "max_tokens": 100}, authorization("bob"))
    spent_before = 1000 - int(headers["x-ratelimit-remaining-tokens"]) - (reserved - 200) - 100
    assert 0 <= spent_before <= 15, "the first reply cost 5 tokens and the rest came back"
    assert int(headers["x-ratelimit-remaining-requests"]) == 8
    _, headers, _ = await ask(gateway, HI, authorization("eve"))
    assert int(headers["x-ratelimit-remaining-requests"]) == 9, "another user has buckets of her own"
    assert "x-ratelimit-limit-tokens" not in (await ask(gateway, HI, authorization("alice")))[1]


async def test_what_is_used_up_is_429_with_the_truth_and_what_can_never_fit_is_400(
    serve: StartGateway, start_upstream: StartUpstream, key_file: Path
) -> None:
    upstream = await start_upstream(replies(200, chat_reply("hi")))
    tiers = {"free": {"tokensPerMinute": 60, "burstTokens": 600}}
    gateway = await serve({"v1": [upstream]}, "--key-file", str(key_file), tiers=tiers)
    status, _, body = await ask(gateway, {**HI, "max_tokens": 900}, authorization("bob"))
    assert (status, orjson.loads(body)["error"]["code"]) == (400, "request_exceeds_quota")
    open_ = [asyncio.ensure_future(ask(gateway, {**HI, "max_tokens": 500}, authorization("bob"))) for _ in range(8)]
    answers = await asyncio.gather(*open_)
    status, headers, body = next(answer for answer in answers if answer[0] != 200)
    error = orjson.loads(body)["error"]
    assert (status, error["code"], error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert int(headers["retry-after"]) >= 1
    assert abs(int(headers["retry-after"]) * 1000 - int(headers["retry-after-ms"])) < 1000
    assert headers.get("x-should-retry") == ("false" if int(headers["retry-after"]) > 120 else None)
    assert await gateway.value("tidewheel_offered_tokens_total", kind="prompt", outcome="shed") or 0 > 0


async def test_a_stream_that_waits_is_told_its_place_and_then_served(
    serve: StartGateway, start_upstream: StartUpstream, connect: Connect, key_file: Path
) -> None:
    ends = [asyncio.Event() for _ in range(4)]
    order = iter(ends)

    async def behave(call: Call) -> None:
        await pauses(next(order))(call)

    upstream = await start_upstream(reporting(behave, load_of(1)))
    gateway = await serve(
        {"v1": [upstream]},
        *("--key-file", str(key_file), "--load-poll-seconds", "0.02", "--queue-notice-seconds", "0.05"),
        *("--queue-update-seconds", "0.05"),
    )
    first = [await connect(gateway) for _ in range(2)]  # one slot, and one of paid work that may wait at the engine
    await _report(upstream)
    for client in first:
        client.writer.write(post(STREAM, authorization("alice")))
        await client.read_head()
    waiting, paid = await connect(gateway), await connect(gateway)
    waiting.writer.write(post(STREAM, authorization("eve")))
    status, headers = await waiting.read_head()
    assert (status, headers["x-tidewheel-queue-position"]) == (200, "1")
    said = orjson.loads((await waiting.read_chunk()).partition(b"data: ")[2])
    assert (said["choices"], said["tidewheel"]["type"], said["tidewheel"]["position"]) == ([], "queued", 1)
    await gateway.until("tidewheel_queue_depth", 1, lane="free")
    paid.writer.write(post(STREAM, authorization("alice")))
    await gateway.until("tidewheel_queue_depth", 1, lane="paid")
    assert len(_asked(upstream)) == 2, "what waits, waits here and not at the engine"
    ends[0].set()
    await paid.read_head()
    await eventually(lambda: len(_asked(upstream)) == 3, what="the next one at the engine")
    assert [call.headers["x-tidewheel-lane"] for call in _asked(upstream)] == ["paid", "paid", "paid"]
    for end in ends:
        end.set()
    rest = await waiting.read_body({"transfer-encoding": "chunked"})
    assert rest.endswith(b"data: [DONE]\n\n")
    await gateway.until("tidewheel_queue_depth", 0)


async def test_a_wait_longer_than_the_lane_may_be_is_refused_with_that_time(
    serve: StartGateway, start_upstream: StartUpstream, connect: Connect, key_file: Path
) -> None:
    go_on = asyncio.Event()
    upstream = await start_upstream(reporting(pauses(go_on), load_of(1)))
    gateway = await serve(
        {"v1": [upstream]}, "--key-file", str(key_file), "--load-poll-seconds", "0.02", "--lane-depth", "1"
    )
    clients = [await connect(gateway) for _ in range(3)]
    await _report(upstream)
    for client in clients:
        client.writer.write(post(STREAM, authorization("bob")))
    await gateway.until("tidewheel_queue_depth", 1, lane="free")
    status, headers, body = await ask(gateway, STREAM, authorization("eve"))
    error = orjson.loads(body)["error"]
    assert (status, error["code"], error["queue_position"]) == (429, "lane_full", 2)
    assert int(headers["retry-after"]) >= 1
    go_on.set()


RUNGS: list[tuple[int, str, int, str]] = [
    (1, "batch", 429, "background_paused"),
    (1, "bob", 200, ""),
    (2, "bob", 200, "output_reduced"),
    (2, "alice", 200, ""),
    (3, "bob", 200, "output_reduced, model_fallback"),
    (4, "bob", 200, "output_reduced, model_fallback"),
    (5, "bob", 429, "free_tier_suspended"),
    (5, "alice", 200, ""),
]


@pytest.mark.parametrize(("rung", "who", "status", "said"), RUNGS)
async def test_each_rung_takes_from_whom_it_says_and_tells_them(
    start: StartGateway,
    start_upstream: StartUpstream,
    key_file: Path,
    tmp_path: Path,
    rung: int,
    who: str,
    status: int,
    said: str,
) -> None:
    chat, mini = await start_upstream(says("large")), await start_upstream(says("small"))
    tiers = {
        "free": {"maxOutputTokens": 400, "fallbackModel": "mini", "message": "Upgrade to skip the line."},
        "paid": {"maxOutputTokens": 4000},
    }
    tables = [
        table(weights={"v1": 10_000}, tiers=tiers, rung=rung),
        table("mini", weights={"v1": 10_000}, uid="mini-uid"),
    ]
    endpoints = {"default/chat-v1": [chat.address], "default/mini-v1": [mini.address]}
    routing = write_routing(tmp_path / "routing.json", tables, endpoints)
    gateway = await start("--static", str(routing), "--key-file", str(key_file))
    got, headers, body = await ask(gateway, STREAM, authorization(who))
    assert got == status
    if status == 429:
        assert orjson.loads(body)["error"]["code"] == said
        assert headers["retry-after"] == "60"
        return
    assert headers.get("x-tidewheel-notice", "") == said
    events = [orjson.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    told = [event["tidewheel"]["type"] for event in events if "tidewheel" in event]
    assert ", ".join(told) == said
    assert b"small" in body if "model_fallback" in said else b"large" in body
    asked = orjson.loads((mini if "model_fallback" in said else chat).calls[0].body)
    assert asked["model"] == ("mini" if "model_fallback" in said else "chat")
    assert asked["max_tokens"] == {"bob": 400 if rung < 2 else 200, "alice": 4000}[who]


async def test_counted_tokens_are_the_engine_s_and_cached_ones_are_seen(
    serve: StartGateway, start_upstream: StartUpstream
) -> None:
    usage = orjson.loads(usage_event(700, 5)[6:])
    usage["usage"]["prompt_tokens_details"] = {"cached_tokens": 512}

    async def behave(call: Call) -> None:
        call.begin_stream()
        call.chunk(chat_event("hi"))
        call.chunk(b"data: " + orjson.dumps(usage) + b"\n\n")
        call.chunk(b"data: [DONE]\n\n")
        call.end_chunks()

    gateway = await serve({"v1": [await start_upstream(behave)]})
    await ask(gateway, {**STREAM, "stream_options": {"include_usage": True}})
    await gateway.until("tidewheel_cached_prompt_tokens_total", 512)
    assert await gateway.value("tidewheel_offered_tokens_total", kind="prompt", outcome="completed") == 700


async def _report(upstream: Any) -> None:
    await eventually(lambda: any(call.line.startswith("GET /load") for call in upstream.calls), what="a report")
    await asyncio.sleep(0.05)


def _asked(upstream: Any) -> list[Call]:
    return [call for call in upstream.calls if call.line.startswith("POST")]


def test_those_who_are_refused_are_told_when_capacity_is_expected_or_that_nobody_knows() -> None:
    relief = Relief(p50="2027-01-15T17:02:00Z", p90="2027-01-15T17:05:00Z")
    now = datetime(2027, 1, 15, 17, 0, tzinfo=UTC).timestamp()
    with pytest.raises(GatewayError) as refusal:
        steer(None, "free", rung=5, pause_seconds=60, wait=wait_for(relief, now))
    assert "about 120 seconds, most likely within 300" in refusal.value.message
    assert (refusal.value.retry_after, refusal.value.extra) == (120, {"eta_ms": 120_000, "eta_p90_ms": 300_000})
    for known in (None, Relief(p50="2027-01-15T16:00:00Z", p90="2027-01-15T16:59:59Z")):
        with pytest.raises(GatewayError) as refusal:
            steer(None, "free", rung=5, pause_seconds=60, wait=wait_for(known, now))
        assert "not known" in refusal.value.message
        assert (refusal.value.retry_after, refusal.value.extra) == (60, {"eta_ms": None})

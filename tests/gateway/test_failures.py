"""Replicas that refuse, reset, stall or lie: another one answers, or the client is told; nothing is left behind."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import openai
import orjson
import pytest
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.programs import Gateway
from tests.gateway.sse_events import event_payloads
from tests.gateway.upstreams import (
    DONE,
    Call,
    Upstream,
    chat_event,
    chat_reply,
    hangs,
    numbered,
    replies,
    says,
    streams,
)
from tests.gateway.wire import HI, ask, post
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.component

STREAM = {**HI, "stream": True}
ClientOf = Callable[..., openai.AsyncOpenAI]


async def resets(call: Call) -> None:
    """Hangs up without a byte."""
    call.hang_up()


async def cut_after_one(call: Call) -> None:
    """Dies in the middle of its second event."""
    call.begin_stream()
    call.chunk(chat_event("one"))
    call.chunk(chat_event("two")[:30])
    await asyncio.sleep(0.05)
    call.hang_up()


FULL = replies(
    429, b'{"error":{"message":"full","type":"rate_limit_error","param":null,"code":null}}', ("retry-after", "7")
)
DRAINING = replies(
    503, b'{"error":{"message":"draining","type":"server_error","param":null,"code":"draining"}}', ("retry-after", "1")
)
BROKEN = replies(500, b'{"error":{"message":"oops","type":"server_error","param":null,"code":null}}')


async def stopped(start_upstream: StartUpstream) -> Upstream:
    """An address where nobody listens."""
    upstream = await start_upstream(says("never"))
    await upstream.stop()
    return upstream


async def assert_nothing_is_held(gateway: Gateway) -> None:
    await gateway.until("tidewheel_in_flight", 0)
    assert await gateway.value("tidewheel_streams_open") == 0


@pytest.mark.parametrize("kind", ["refused", "reset", "draining", "full", "broken"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_another_replica_answers_before_the_first_byte(
    start_upstream: StartUpstream, serve: StartGateway, kind: str, stream: bool
) -> None:
    behaviours = {"reset": resets, "draining": DRAINING, "full": FULL, "broken": BROKEN}
    bad = await stopped(start_upstream) if kind == "refused" else await start_upstream(behaviours[kind])
    good = await start_upstream(says("hi"))
    gateway = await serve({"v1": [bad, good]})
    for _ in range(10):
        status, _, body = await ask(gateway, {**HI, "stream": stream})
        assert status == 200
        assert b"hi" in body
    if kind != "broken":  # one that fails by status stays in rotation, the others are avoided for a while
        assert len(bad.calls) <= 2
    assert await gateway.value("tidewheel_requests_total", code_class="2xx") == 10
    assert await gateway.value("tidewheel_request_errors_total") == 0
    await assert_nothing_is_held(gateway)


async def test_the_retry_carries_an_id_of_its_own(start_upstream: StartUpstream, serve: StartGateway) -> None:
    first, second = await start_upstream(resets), await start_upstream(resets)
    gateway = await serve({"v1": [first, second]})
    _, headers, _ = await ask(gateway, HI)
    ids = {call.headers["x-request-id"] for call in (*first.calls, *second.calls)}
    assert ids == {f"{headers['x-request-id']}-1", f"{headers['x-request-id']}-2"}


async def test_when_all_replicas_fail_the_client_is_told_why(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    upstream = await start_upstream(resets)
    gateway = await serve({"v1": [upstream, await stopped(start_upstream)]})
    for _ in range(3):
        status, headers, body = await ask(gateway, HI)
        error = orjson.loads(body)["error"]
        assert (status, error["code"]) in {(502, "upstream_reset"), (503, "unreachable")}
        assert int(headers["retry-after"]) >= 1
        assert "127.0.0.1" not in body.decode()
    assert await gateway.value("tidewheel_request_errors_total") == 3
    await assert_nothing_is_held(gateway)


async def test_a_replica_that_is_always_full_is_asked_once_and_its_words_reach_the_client(
    start_upstream: StartUpstream, serve: StartGateway, client_of: ClientOf
) -> None:
    """Two routers of the field try five times."""
    upstream = await start_upstream(FULL)
    gateway = await serve({"v1": [upstream]})
    status, headers, body = await ask(gateway, HI)
    assert (status, headers["retry-after"], orjson.loads(body)["error"]["message"]) == (429, "7", "full")
    assert len(upstream.calls) == 1
    with pytest.raises(openai.RateLimitError):
        await client_of(gateway).chat.completions.create(model="chat", messages=[])
    assert len(upstream.calls) == 2


async def test_when_every_replica_is_full_they_are_not_all_asked_again_and_again(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    upstreams = [await start_upstream(FULL) for _ in range(3)]
    gateway = await serve({"v1": upstreams}, "--back-pressure-seconds", "60")
    for _ in range(10):
        assert (await ask(gateway, HI))[0] == 429
    assert sum(len(upstream.calls) for upstream in upstreams) == 3 + 9


async def test_a_replica_that_was_full_gets_traffic_again(start_upstream: StartUpstream, serve: StartGateway) -> None:
    """sglang#39464: no breaker opens."""
    full, free = await start_upstream(DRAINING), await start_upstream(says("hi"))
    gateway = await serve({"v1": [full, free]}, "--back-pressure-seconds", "0.05", "--placement", "random")
    while not full.calls:
        assert (await ask(gateway, HI))[0] == 200
    full.behave = says("hi again")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(full.calls) < 3:
            assert (await ask(gateway, HI))[0] == 200


async def test_retries_stay_within_their_budget(start_upstream: StartUpstream, serve: StartGateway) -> None:
    """production-stack#839: many failures must not become many more requests."""
    upstreams = [await start_upstream(BROKEN) for _ in range(3)]
    gateway = await serve({"v1": upstreams}, "--retry-burst", "5", "--retry-ratio", "0.1")
    for _ in range(50):
        status, _, body = await ask(gateway, HI)
        assert (status, orjson.loads(body)["error"]["message"]) == (500, "oops")
    assert 55 <= sum(len(upstream.calls) for upstream in upstreams) <= 60


async def test_an_unreachable_replica_costs_no_budget(start_upstream: StartUpstream, serve: StartGateway) -> None:
    good, gone = await start_upstream(says("hi")), await stopped(start_upstream)
    gateway = await serve({"v1": [good, gone]}, "--retry-burst", "0", "--suspension-seconds", "0")
    for _ in range(20):
        assert (await ask(gateway, HI))[0] == 200


async def test_a_kept_connection_that_proves_dead_is_replaced_unseen(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]})
    assert (await ask(gateway, HI))[0] == 200

    async def hang_up_once(call: Call) -> None:
        upstream.behave = says("hi")
        call.hang_up()

    upstream.behave = hang_up_once
    assert (await ask(gateway, HI))[0] == 200
    assert upstream.connections == 2
    assert len(upstream.calls) == 3


async def test_idle_connections_are_closed_before_engines_close_them(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]}, "--pool-idle-timeout", "0.05")
    assert (await ask(gateway, HI))[0] == 200
    await asyncio.wait_for(upstream.calls[0].closed.wait(), PATIENCE_SECONDS)
    assert (await ask(gateway, HI))[0] == 200
    assert upstream.connections == 2


@pytest.mark.parametrize(
    "end", ["reset", "no last event", "error status after heartbeat", "too long", "not JSON", "silent"]
)
async def test_a_stream_that_ends_abnormally_says_so(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect, client_of: ClientOf, end: str
) -> None:
    """free-coding-models#137: openai's client takes a stream that just stops as complete."""

    async def fail_late(call: Call) -> None:
        await asyncio.sleep(0.1)
        await BROKEN(call)

    behaviours = {
        "reset": cut_after_one,
        "no last event": streams([chat_event("one")]),
        "error status after heartbeat": fail_late,
        "too long": streams([chat_event("one"), b"data: " + b"x" * 5000]),
        "not JSON": streams([chat_event("one"), b"data: {oops\n\n", DONE]),
        "silent": one_then_silence,
    }
    gateway = await serve(
        {"v1": [await start_upstream(behaviours[end])]},
        *("--heartbeat-interval", "0.03", "--max-event-bytes", "4000", "--idle-timeout", "0.3"),
    )
    client = await connect(gateway)
    client.writer.write(post(STREAM))
    status, headers = await client.read_head()
    body = await client.read_body(headers)
    assert status == 200
    assert await client.at_end()
    *shown, last = event_payloads(body)
    assert set(orjson.loads(last)["error"]) >= {"message", "type", "param", "code"}
    assert b"event: error\n" in body
    assert shown == ([] if "heartbeat" in end else event_payloads(chat_event("one")))
    with pytest.raises(openai.APIError):
        async for _ in await client_of(gateway).chat.completions.create(model="chat", messages=[], stream=True):
            pass
    assert await gateway.value("tidewheel_request_errors_total") == 2
    await assert_nothing_is_held(gateway)


async def one_then_silence(call: Call) -> None:
    call.begin_stream()
    call.chunk(chat_event("one"))
    await hangs(call)


async def test_an_unterminated_last_event_is_delivered(start_upstream: StartUpstream, serve: StartGateway) -> None:
    gateway = await serve({"v1": [await start_upstream(streams([chat_event("one"), b"data: [DONE]"]))]})
    assert event_payloads((await ask(gateway, STREAM))[2])[-1] == b"[DONE]"


async def test_a_stream_that_breaks_before_anything_was_shown_is_tried_elsewhere(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    async def head_only(call: Call) -> None:
        call.begin_stream()
        await asyncio.sleep(0.02)
        call.hang_up()

    bad, good = await start_upstream(head_only), await start_upstream(says("hi"))
    gateway = await serve({"v1": [bad, good]}, "--placement", "least-loaded")
    for _ in range(20):  # equally loaded, so each is as likely as the other
        status, _, body = await ask(gateway, STREAM)
        assert (status, event_payloads(body)[-1]) == (200, b"[DONE]")
        if bad.calls:
            break
    assert bad.calls


@pytest.mark.parametrize("said", [b"", b"{", b"[1]", b"<html>"], ids=["empty", "half", "list", "html"])
async def test_a_reply_that_is_no_json_object_becomes_a_typed_502(
    start_upstream: StartUpstream, serve: StartGateway, said: bytes
) -> None:
    gateway = await serve({"v1": [await start_upstream(replies(200, said))]})
    status, _, body = await ask(gateway, HI)
    assert (status, orjson.loads(body)["error"]["code"]) == (502, "invalid_reply")
    assert await gateway.value("tidewheel_request_errors_total", reason="invalid_reply") == 1


async def test_a_whole_reply_cut_short_becomes_a_typed_502_and_is_not_repeated(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    async def half(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + chat_reply("hi")[:50])
        await asyncio.sleep(0.02)
        call.hang_up()

    upstreams = [await start_upstream(half) for _ in range(2)]
    gateway = await serve({"v1": upstreams})
    status, _, body = await ask(gateway, HI)
    assert (status, orjson.loads(body)["error"]["code"]) == (502, "upstream_reset")
    assert sum(len(upstream.calls) for upstream in upstreams) == 1


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
        b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{",
    ],
    ids=["both framings", "ssh", "endless header", "redirect", "interim then nonsense"],
)
async def test_whatever_a_replica_says_the_gateway_answers_5xx(
    start_upstream: StartUpstream, serve: StartGateway, said: bytes
) -> None:
    """llm-d-router#1147."""

    async def say(call: Call) -> None:
        call.send(said)
        await asyncio.sleep(0.05)
        call.hang_up()

    gateway = await serve({"v1": [await start_upstream(say)]})
    for body in (HI, STREAM):
        status, _, answer = await ask(gateway, body)
        assert status == 502
        assert orjson.loads(answer)["error"]["type"] == "server_error"
    await assert_nothing_is_held(gateway)


async def test_a_replica_that_never_answers_becomes_a_504(start_upstream: StartUpstream, serve: StartGateway) -> None:
    upstream = await start_upstream(hangs)
    gateway = await serve({"v1": [upstream]}, "--first-byte-timeout", "0.1")
    for body in (HI, STREAM):
        status, _, answer = await ask(gateway, body)
        assert (status, orjson.loads(answer)["error"]["code"]) == (504, "upstream_timeout")
    await asyncio.wait_for(upstream.calls[1].closed.wait(), PATIENCE_SECONDS)
    assert len(upstream.calls) == 2
    await assert_nothing_is_held(gateway)


@pytest.mark.parametrize("phase", ["before the answer", "whole reply", "in the stream", "after a heartbeat"])
async def test_a_client_that_goes_away_closes_its_upstream_within_100_ms(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect, phase: str
) -> None:
    """litellm#30244, #14295."""
    upstream = await start_upstream(one_then_silence if "stream" in phase else hangs)
    gateway = await serve({"v1": [upstream]}, "--heartbeat-interval", "0.02" if "heartbeat" in phase else "10")
    times = []
    for number in range(1, 6):
        client = await connect(gateway)
        client.writer.write(post(HI if phase == "whole reply" else STREAM))
        call = await upstream.next_call(number)
        if phase in {"in the stream", "after a heartbeat"}:
            await client.read_head()
            await client.read_chunk()
        gone_at = time.monotonic()
        await client.close()
        await asyncio.wait_for(call.closed.wait(), PATIENCE_SECONDS)
        times.append(time.monotonic() - gone_at)
    assert sorted(times)[2] < 0.1, times  # a promise of the product; the median, because the machine is shared
    await assert_nothing_is_held(gateway)
    assert await gateway.value("tidewheel_request_errors_total") == 0


async def test_a_reader_that_takes_nothing_holds_little_memory_and_is_dropped(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    """bun#32469, vercel/ai#9475: the engine is not read faster than the client."""
    sent = Counter[str]()

    async def endless(call: Call) -> None:
        call.begin_stream()
        assert call.writer is not None
        while True:
            call.chunk(chat_event("x" * 10_000))
            sent["bytes"] += 10_000
            await call.writer.drain()

    upstream = await start_upstream(endless)
    gateway = await serve({"v1": [upstream]}, "--stalled-reader-timeout", "3")
    client = await connect(gateway)
    client.writer.write(post(STREAM))
    call, before = await upstream.next_call(), -1
    while sent["bytes"] != before:  # until the engine is held back; it never is if we read on
        before = sent["bytes"]
        await asyncio.sleep(0.3)
    assert not call.closed.is_set()
    assert sent["bytes"] < 40_000_000  # what sockets and buffers hold
    await asyncio.wait_for(call.closed.wait(), PATIENCE_SECONDS)
    await assert_nothing_is_held(gateway)


async def test_a_slow_reader_gets_everything(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    events = [chat_event("x" * 20_000) for _ in range(400)] + [DONE]
    gateway = await serve({"v1": [await start_upstream(streams(events))]}, "--write-buffer-bytes", "1000")
    client = await connect(gateway)
    client.writer.write(post(STREAM))
    await client.read_head()
    body = b""
    while chunk := await client.read_chunk():
        body += chunk
        if len(body) < 1_000_000:
            await asyncio.sleep(0.002)
    assert body == b"".join(numbered(*events))


async def test_the_least_loaded_replica_is_chosen(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    upstreams = [await start_upstream(one_then_silence) for _ in range(3)]
    gateway = await serve({"v1": upstreams}, "--placement", "least-loaded")
    for _ in range(12):
        client = await connect(gateway)
        client.writer.write(post(STREAM))
        await client.read_head()
    assert [len(upstream.calls) for upstream in upstreams] == [4, 4, 4]

"""Streams through the real program: what the engine says is what the client gets, as it is said."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import openai
import orjson
import pytest
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.flood import fixed_engine, pipeline
from tests.gateway.programs import table, write_routing
from tests.gateway.sse_events import event_payloads
from tests.gateway.upstreams import (
    DONE,
    Call,
    chat_event,
    chat_reply,
    chat_stream,
    numbered,
    pauses,
    replies,
    says,
    streams,
    usage_event,
)
from tests.gateway.wire import HI, ask, post
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.component

STREAM = {**HI, "stream": True}
ClientOf = Callable[..., openai.AsyncOpenAI]


async def test_the_openai_client_reads_a_stream(
    start_upstream: StartUpstream, serve: StartGateway, client_of: ClientOf
) -> None:
    client = client_of(await serve({"v1": [await start_upstream(says("one two three"))]}))
    stream = await client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    words = [chunk.choices[0].delta.content async for chunk in stream]
    assert [word for word in words if word] == ["one", "two", "three"]


async def test_the_openai_client_reads_a_whole_reply(
    start_upstream: StartUpstream, serve: StartGateway, client_of: ClientOf
) -> None:
    client = client_of(await serve({"v1": [await start_upstream(says("one two"))]}))
    reply = await client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "hi"}])
    assert reply.choices[0].message.content == "one two"
    assert [model.id for model in (await client.models.list()).data] == ["chat"]
    assert (await client.models.retrieve("default/chat")).object == "model"


async def test_stream_and_reply_are_byte_exact(start_upstream: StartUpstream, serve: StartGateway) -> None:
    """Kong#13000, #14172."""
    odd = [
        b": comment\n",
        b"id: 7\ndata:" + chat_event("x")[6:],
        b"\xef\xbb\xbf" + chat_event("y"),
        usage_event(3, 2),
        DONE,
    ]
    upstream = await start_upstream(streams(odd))
    gateway = await serve({"v1": [upstream]})
    status, headers, body = await ask(gateway, STREAM)
    events = [chat_event("x"), chat_event("y"), usage_event(3, 2), DONE]  # comments and foreign numbers are not content
    assert (status, body) == (200, b"".join(numbered(*events)))
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-accel-buffering"] == "no"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-tidewheel-version"] == "v1"
    upstream.behave = replies(200, chat_reply("häuser") + b"  ")
    status, headers, body = await ask(gateway, HI)
    assert (status, body) == (200, chat_reply("häuser") + b"  ")
    assert headers["x-request-id"].startswith("req-")


async def test_the_body_reaches_the_engine_byte_for_byte(start_upstream: StartUpstream, serve: StartGateway) -> None:
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]})
    body = b'{ "model" : "chat",\n "messages": [ ] , "unknown": 1e3, "big": 123456789012345678901234567890 }'
    await ask(gateway, body)
    assert upstream.calls[0].body == body
    assert len(upstream.calls) == 1


async def test_a_qualified_model_goes_by_its_bare_name_at_the_engine(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]})
    assert (await ask(gateway, {**HI, "model": "default/chat", "temperature": 0.5}))[0] == 200
    assert orjson.loads(upstream.calls[0].body) == {**HI, "model": "chat", "temperature": 0.5}


async def test_engines_get_their_token_and_none_of_the_client_s_secrets(
    start_upstream: StartUpstream, serve: StartGateway, tmp_path: Path
) -> None:
    """llm-d-router#242; DESIGN section 7."""
    token = tmp_path / "token"
    token.write_text("engine-secret\n")
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]}, "--engine-token-file", str(token))
    secrets = (
        "authorization: Bearer sk-client",
        "cookie: a=b",
        "x-tidewheel-tenant: root",
        "x-gateway-destination-endpoint: 1.2.3.4",
    )
    hops = (
        "connection: keep-alive, x-secret",
        "x-secret: 1",
        "keep-alive: 5",
        "te: trailers",
        "proxy-authorization: x",
    )
    status, headers, _ = await ask(gateway, HI, *secrets, *hops, "x-request-id: mine", "traceparent: 00-a-b-01")
    sent = upstream.calls[0].headers
    assert status == 200
    assert sent["authorization"] == "Bearer engine-secret"
    assert sent["x-request-id"] == headers["x-request-id"] + "-1"
    assert sent["traceparent"] == "00-a-b-01"
    assert set(sent) == {
        "host",
        "content-type",
        "content-length",
        "accept-encoding",
        "authorization",
        "x-request-id",
        "x-tidewheel-lane",
        "traceparent",
    }
    line = await gateway.wait_for_log("request", client_request_id="mine")
    assert line["request_id"] == headers["x-request-id"]
    assert "sk-client" not in str(gateway.logs)
    assert "engine-secret" not in str(gateway.logs)


async def test_every_event_is_shown_as_soon_as_it_is_there(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    """dstack#4269: each read of the client is one event; the next is not sent before the last was seen."""
    seen = asyncio.Event()

    async def one_by_one(call: Call) -> None:
        call.begin_stream()
        for event in chat_stream("a", "b", "c"):
            seen.clear()
            call.chunk(event)
            await seen.wait()
        call.end_chunks()

    gateway = await serve({"v1": [await start_upstream(one_by_one)]})
    client = await connect(gateway)
    client.writer.write(post(STREAM))
    await client.read_head()
    for event in numbered(*chat_stream("a", "b", "c")):
        assert await asyncio.wait_for(client.read_chunk(), PATIENCE_SECONDS) == event
        seen.set()
    assert await client.read_chunk() == b""


async def test_tiny_frames_pass_as_whole_events(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    """databricks/unity-gateway#361: no fixed-size reads. Half an event is never shown."""
    data = b"".join(chat_stream("one", "two"))

    async def trickle(call: Call) -> None:
        call.begin_stream()
        for start in range(0, len(data), 20):
            call.chunk(data[start : start + 20])
            await asyncio.sleep(0.001)
        call.end_chunks()

    gateway = await serve({"v1": [await start_upstream(trickle)]})
    client = await connect(gateway)
    client.writer.write(post(STREAM))
    await client.read_head()
    chunks = []
    while chunk := await client.read_chunk():
        chunks.append(chunk)
        assert chunk.endswith(b"\n\n")
    assert b"".join(chunks) == b"".join(numbered(*chat_stream("one", "two")))


async def test_silence_is_filled_with_heartbeats_that_clients_bear(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect, client_of: ClientOf
) -> None:
    """openclaw#70739, litellm#31865; one newline, or the openai client raises JSONDecodeError."""
    beats = asyncio.Event()

    async def slow(call: Call) -> None:
        await beats.wait()
        beats.clear()
        call.begin_stream()
        call.chunk(b"id: 1\n" + chat_event("one"))
        await beats.wait()
        for event in (chat_event("two"), chat_event(None, finish="stop"), DONE):
            call.chunk(event)
        call.end_chunks()

    gateway = await serve({"v1": [await start_upstream(slow)]}, "--heartbeat-interval", "0.05")
    raw = await connect(gateway)
    raw.writer.write(post(STREAM))
    assert (await raw.read_head())[0] == 200
    assert await raw.read_chunk() == b": ping\n"
    beats.set()
    body = b""
    while b"one" not in body:
        body += await raw.read_chunk()
    assert await raw.read_chunk() == b": ping\n"
    beats.set()
    body += await raw.read_body({"transfer-encoding": "chunked"})
    assert event_payloads(body)[-1] == b"[DONE]"

    async def let_go() -> None:
        for _ in range(2):
            await asyncio.sleep(0.2)
            beats.set()

    going = asyncio.create_task(let_go())
    stream = await client_of(gateway).chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    words = [chunk.choices[0].delta.content async for chunk in stream]
    assert [word for word in words if word] == ["one", "two"]
    await going


async def test_connections_are_kept_and_reused_on_both_sides(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    upstream = await start_upstream(says("hi there"))
    gateway = await serve({"v1": [upstream]})
    client = await connect(gateway)
    for body in (HI, STREAM, HI, STREAM):
        client.writer.write(post(body))
        assert (await client.read_all())[0] == 200
    assert upstream.connections == 1
    assert len(upstream.calls) == 4


async def test_pipelined_requests_are_answered_in_order(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]})
    client = await connect(gateway)
    client.writer.write(post(HI) + b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n" + post(STREAM))
    assert orjson.loads((await client.read_all())[2])["object"] == "chat.completion"
    assert (await client.read_all())[2] == b"ok\n"
    assert event_payloads((await client.read_all())[2])[-1] == b"[DONE]"


async def test_an_http_1_0_client_gets_a_stream_until_the_connection_closes(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    gateway = await serve({"v1": [await start_upstream(says("hi"))]})
    client = await connect(gateway)
    client.writer.write(post(STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"))
    status, headers = await client.read_head()
    assert status == 200
    assert "transfer-encoding" not in headers
    assert event_payloads(await client.read_body(headers))[-1] == b"[DONE]"


async def test_expect_continue_is_answered_before_the_body(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    gateway = await serve({"v1": [await start_upstream(says("hi"))]})
    client = await connect(gateway)
    head, _, body = post(HI, "expect: 100-continue").partition(b"\r\n\r\n")
    client.writer.write(head + b"\r\n\r\n")
    assert (await client.read_head())[0] == 100
    client.writer.write(body)
    assert (await client.read_all())[0] == 200


async def test_hundreds_of_streams_to_one_replica_are_all_open(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    """litellm#1360, #19549: no hidden limit of a pool."""
    go_on = asyncio.Event()
    upstream = await start_upstream(pauses(go_on))
    # One loop is all of them: the gateway, its clients, its replica.
    gateway = await serve({"v1": [upstream]}, "--connect-timeout", "60")
    clients = [await connect(gateway) for _ in range(400)]
    for client in clients:
        client.writer.write(post(STREAM))
    for client in clients:
        assert (await client.read_head())[0] == 200
    assert upstream.open_connections == 400
    assert await gateway.value("tidewheel_streams_open", version="v1") == 400
    go_on.set()
    for client in clients:
        assert (await client.read_body({"transfer-encoding": "chunked"})).endswith(DONE)
    await gateway.until("tidewheel_in_flight", 0)


async def test_ten_thousand_conversations_are_split_as_the_table_says_and_stay(
    start: StartGateway, stack: AsyncExitStack, tmp_path: Path
) -> None:
    """The whole way through the program: 90/10 within the binomial 99.9 % band."""
    engine = await stack.enter_async_context(fixed_engine(chat_reply("hi")))
    weights, ends = {"v1": 9_000, "v2": 1_000}, {f"default/chat-{version}": [engine] for version in ("v1", "v2")}
    routing = write_routing(tmp_path / "routing.json", [table(weights=weights)], ends)
    gateway = await start("--static", str(routing), "--no-access-log")

    async def versions_of(numbers: Sequence[int]) -> list[str]:
        heads = await pipeline(gateway.data_port, [post(HI, f"x-conversation-id: c{number}") for number in numbers])
        assert all(head.startswith(b"HTTP/1.1 200") for head in heads)
        return [head.partition(b"x-tidewheel-version: ")[2].partition(b"\r\n")[0].decode() for head in heads]

    lanes = 50
    found = await asyncio.gather(*(versions_of(range(lane, 10_000, lanes)) for lane in range(lanes)))
    versions = [version for lane in found for version in lane]
    low, high = 900, 1100  # mean 1,000, deviation 30: 3.29 deviations are 99
    assert low <= versions.count("v2") <= high
    assert versions.count("v1") + versions.count("v2") == 10_000
    assert await versions_of(range(0, 10_000, 500)) == found[0][:: 500 // lanes]

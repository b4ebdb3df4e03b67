"""Responses through a real gateway, by the unmodified openai client and on the wire."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from openai.types.responses import Response
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.programs import Gateway, table, write_routing
from tests.gateway.replies.engines import TokenEngine, whole_text
from tests.gateway.replies.redis_server import RedisServer, running_redis
from tests.gateway.replies.test_resuming import fetch
from tests.gateway.sse_events import event_payloads
from tests.gateway.wire import ask, post

pytestmark = pytest.mark.component

ClientOf = Callable[..., openai.AsyncOpenAI]
HI = {"model": "chat", "input": "hi", "max_output_tokens": 12}
ME = "authorization: Bearer sk-client"  # as the openai client says it
ENDED = ("completed", "incomplete", "failed", "cancelled")


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    """One for each test: what it holds is what the test put there."""
    async with running_redis() as server:
        yield server


async def create(gateway: Gateway, **fields: object) -> tuple[int, dict[str, str], bytes]:
    return await ask(gateway, {**HI, **fields}, path="/v1/responses")


async def until_ended(client: openai.AsyncOpenAI, response_id: str) -> Response:
    async with asyncio.timeout(60):
        while (response := await client.responses.retrieve(response_id)).status not in ENDED:
            await asyncio.sleep(0.01)
    return response


async def test_the_openai_client_gets_text_events_usage_and_what_it_sent(
    start_upstream: StartUpstream, serve: StartGateway, client_of: ClientOf
) -> None:
    engine = TokenEngine()
    client = client_of(await serve({"v1": [await start_upstream(engine)]}))
    whole = await client.responses.create(
        model="chat", input="hi", instructions="be brief", max_output_tokens=12, metadata={"a": "b"}
    )
    assert whole.output_text == whole_text(12)
    assert (whole.status, whole.incomplete_details and whole.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert whole.usage is not None
    assert whole.usage.output_tokens == 12
    assert (whole.metadata, whole.instructions) == ({"a": "b"}, "be brief")
    assert engine.bodies[0]["messages"][0] == {"role": "system", "content": "be brief"}
    stream = await client.responses.create(model="chat", input="hi", max_output_tokens=12, stream=True)
    events = [event async for event in stream]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole_text(12)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    again = await client.responses.retrieve(whole.id)
    assert again.output_text == whole_text(12)
    assert again.usage == whole.usage
    await client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(whole.id)


async def test_one_in_the_background_is_answered_at_once_and_goes_on_without_listeners(
    start_upstream: StartUpstream, serve: StartGateway, client_of: ClientOf
) -> None:
    engine, seen = TokenEngine(pause=0.005), list[dict[str, str]]()
    upstream = await start_upstream(engine)
    client = client_of(await serve({"v1": [upstream]}, "--listener-timeout", "0.01"))
    accepted = await client.responses.create(model="chat", input="hi", max_output_tokens=40, background=True)
    assert accepted.status in ("queued", "in_progress")
    assert accepted.background
    ended = await until_ended(client, accepted.id)
    assert ended.output_text == whole_text(40)
    seen += [dict(call.headers) for call in upstream.calls]
    assert seen[0]["x-tidewheel-lane"] == "background"


async def test_a_stream_in_the_background_is_taken_up_after_any_event(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect, client_of: ClientOf
) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine(pause=0.01))]}, "--listener-timeout", "0.01")
    client = await connect(gateway)
    client.writer.write(post({**HI, "stream": True, "background": True}, ME, path="/v1/responses"))
    _, headers = await client.read_head()
    first = await client.read_chunk()
    await client.close()
    path = f"/v1/responses/{headers['x-tidewheel-reply']}"
    await until_ended(client_of(gateway), headers["x-tidewheel-reply"])
    whole = (await fetch(gateway, path + "?stream=true", ME))[2]
    assert whole.startswith(first)
    assert orjson.loads(event_payloads(whole)[-1])["response"]["output"][0]["content"][0]["text"] == whole_text(12)
    events = [part + b"\n\n" for part in whole.split(b"\n\n")[:-1]]
    for seen in range(len(events)):
        rest = b"".join(events[seen + 1 :])
        assert (await fetch(gateway, f"{path}?stream=true&starting_after={seen}", ME))[2] == rest
        assert (await fetch(gateway, f"{path}?stream=true", f"last-event-id: {seen}", ME))[2] == rest
    status, _, body = await fetch(gateway, f"{path}?stream=true&starting_after={len(events)}", ME)
    assert (status, orjson.loads(body)["error"]["code"]) == (400, "event_not_sent")
    resumed = await client_of(gateway).responses.retrieve(
        headers["x-tidewheel-reply"], stream=True, starting_after=len(events) - 2
    )
    assert [event.type async for event in resumed] == ["response.incomplete"]


async def test_cancelling_keeps_the_text_and_can_be_asked_twice(
    start_upstream: StartUpstream, serve: StartGateway, client_of: ClientOf
) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine(pause=0.01))]})
    client = client_of(gateway)
    stream = await client.responses.create(model="chat", input="hi", max_output_tokens=5000, stream=True)
    events: list[Any] = []
    async for event in stream:
        events.append(event)
        if sum(each.type == "response.output_text.delta" for each in events) == 3:
            cancelled = await client.responses.cancel(events[0].response.id)
            assert cancelled.status == "cancelled"
            assert cancelled.output_text.startswith(whole_text(3))
    assert (events[-1].type, events[-1].code) == ("error", "cancelled")
    assert (await client.responses.cancel(events[0].response.id)).status == "cancelled"
    await gateway.until("tidewheel_in_flight", 0)


async def test_errors_before_the_first_event_are_plain_answers(
    start_upstream: StartUpstream, serve: StartGateway, client_of: ClientOf
) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]})
    client = client_of(gateway)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="chat", input="hi", tools=[{"type": "web_search"}])
    assert caught.value.param == "tools"
    for background in (False, True):
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="none", input="hi", background=background)
    for path in ("/v1/responses/resp_none", "/v1/responses/resp_none?stream=true"):
        assert (await fetch(gateway, path))[0] == 404
    status, _, body = await fetch(gateway, "/v1/responses/resp_none/input_items")
    assert (status, orjson.loads(body)["error"]["code"]) == (404, "unknown_path")
    assert (await fetch(gateway, "/v1/responses"))[0] == 405
    chat = await ask(gateway, {"model": "chat", "messages": []}, "x-resumable: true")
    assert (await fetch(gateway, f"/v1/responses/{chat[1]['x-tidewheel-reply']}"))[0] == 404


async def test_a_replica_lost_in_mid_response_is_replaced_unseen(
    start_upstream: StartUpstream, serve: StartGateway, client_of: ClientOf
) -> None:
    """Also where the client asked for no stream: nuguard#455."""
    replicas = [await start_upstream(TokenEngine(break_after=5)) for _ in range(2)]
    client = client_of(await serve({"v1": replicas}))
    whole = await client.responses.create(model="chat", input="hi", max_output_tokens=9)
    assert whole.output_text == whole_text(9)


async def test_a_response_that_cannot_be_continued_keeps_its_text(
    start_upstream: StartUpstream, serve: StartGateway, client_of: ClientOf
) -> None:
    upstream = await start_upstream(TokenEngine(break_after=5))
    client = client_of(await serve({"v1": [upstream]}, "--continuation-wait", "0.05"))
    whole = await client.responses.create(model="chat", input="hi", max_output_tokens=9)
    assert (whole.status, whole.output_text) == ("failed", whole_text(5))
    assert whole.error is not None


async def test_a_key_makes_one_response_of_two_messages(start_upstream: StartUpstream, serve: StartGateway) -> None:
    engine = TokenEngine()
    gateway = await serve({"v1": [await start_upstream(engine)]})
    key = "idempotency-key: k"
    both = [await ask(gateway, HI, key, path="/v1/responses") for _ in range(2)]
    assert both[0][2] == both[1][2]
    assert len(engine.bodies) == 1
    status, _, body = await ask(gateway, {**HI, "metadata": {"a": "b"}}, key, path="/v1/responses")
    assert (status, orjson.loads(body)["error"]["code"]) == (422, "idempotency_key_reused")


async def test_the_text_outlives_the_events(
    start_upstream: StartUpstream, serve: StartGateway, client_of: ClientOf
) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]}, "--reply-retention", "0.05")
    whole = orjson.loads((await create(gateway))[2])
    path = f"/v1/responses/{whole['id']}"
    async with asyncio.timeout(60):
        while (await fetch(gateway, path + "?stream=true"))[0] != 410:
            await asyncio.sleep(0.01)
    assert orjson.loads((await fetch(gateway, path))[2]) == whole


async def test_any_gateway_shows_follows_and_cancels_it(
    start_upstream: StartUpstream, start: StartGateway, redis: RedisServer, tmp_path: Path, client_of: ClientOf
) -> None:
    upstream = await start_upstream(TokenEngine(pause=0.01))
    path = write_routing(
        tmp_path / "routing.json", [table(weights={"v1": 10_000})], {"default/chat-v1": [upstream.address]}
    )
    slow = ("--store-timeout", "60", "--lease-seconds", "60", "--mirror-seconds", "0.02")
    gateways = [await start("--static", str(path), "--redis-url", redis.url, *slow) for _ in range(2)]
    one, other = (client_of(gateway) for gateway in gateways)
    accepted = await one.responses.create(model="chat", input="hi", max_output_tokens=40, background=True)
    followed = await other.responses.retrieve(accepted.id, stream=True)
    events = [event async for event in followed]
    assert events[-1].type == "response.incomplete"
    here, there = [(await fetch(gateway, f"/v1/responses/{accepted.id}?stream=true", ME))[2] for gateway in gateways]
    assert here == there
    assert len(event_payloads(here)) == len(events)
    endless = await one.responses.create(model="chat", input="hi", max_output_tokens=100_000, background=True)
    assert (await other.responses.cancel(endless.id)).status == "cancelled"
    await gateways[0].until("tidewheel_in_flight", 0)


async def test_the_background_is_refused_where_nobody_could_find_it_again(
    start_upstream: StartUpstream, start: StartGateway, redis: RedisServer, tmp_path: Path
) -> None:
    upstream = await start_upstream(TokenEngine())
    path = write_routing(
        tmp_path / "routing.json", [table(weights={"v1": 10_000})], {"default/chat-v1": [upstream.address]}
    )
    gateway = await start("--static", str(path), "--redis-url", redis.url)
    await redis.kill()
    await gateway.until("tidewheel_reply_store_away", 1, seconds=60)
    status, headers, body = await create(gateway, background=True)
    assert (status, orjson.loads(body)["error"]["code"]) == (503, "reply_store_unavailable")
    assert int(headers["retry-after"]) >= 1
    status, headers, body = await create(gateway)
    assert (status, headers["x-tidewheel-resumable"]) == (200, "false")
    assert orjson.loads(body)["output"][0]["content"][0]["text"] == whole_text(12)

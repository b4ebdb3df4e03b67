"""A client that went away finds its reply again, byte for byte, on the same gateway."""

import asyncio
from typing import Any

import orjson
import pytest
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.programs import Gateway
from tests.gateway.replies.engines import TokenEngine, whole_text
from tests.gateway.replies.reading import numbers_of, text_of, without_heartbeats
from tests.gateway.sse_events import event_payloads
from tests.gateway.wire import HI, ask, open_client, post
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.component

STREAM = {**HI, "stream": True, "max_tokens": 40}
RESUMABLE = "x-resumable: true"


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    """The bytes of a request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: gateway", *headers, "", ""]).encode()


async def fetch(gateway: Gateway, path: str, *headers: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """One answer on a connection of its own."""
    client = await open_client(gateway)
    client.writer.write(get(path, *headers, method=method))
    try:
        status, answered = await client.read_head()
        return status, answered, b"" if status == 204 else await client.read_body(answered)
    finally:
        await client.close()


async def look_up(gateway: Gateway, reply_id: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((await fetch(gateway, f"/v1/replies/{reply_id}"))[2])
    return found


async def until_status(gateway: Gateway, reply_id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (found := await look_up(gateway, reply_id))["status"] != status:
            await asyncio.sleep(0.01)
    return found


async def test_a_reply_cut_after_any_event_is_resumed_byte_for_byte(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    """openai-node#2671, #1984; azure-dev#9704."""
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]})
    status, headers, body = await ask(gateway, STREAM, RESUMABLE)
    assert (status, headers["x-tidewheel-resumable"]) == (200, "true")
    assert text_of(body) == whole_text(40)
    assert numbers_of(body) == list(range(1, len(event_payloads(body)) + 1))
    path = f"/v1/replies/{headers['x-tidewheel-reply']}/events"
    events = [part + b"\n\n" for part in body.split(b"\n\n")[:-1]]
    client = await connect(gateway)
    for seen in range(len(events)):
        client.writer.write(get(path, f"last-event-id: {seen}"))
        assert (await client.read_all())[2] == b"".join(events[seen:])
        client.writer.write(get(f"{path}?starting_after={seen}"))
        assert (await client.read_all())[2] == b"".join(events[seen:])
    assert (await fetch(gateway, path, f"last-event-id: {len(events)}"))[0] == 204
    assert (await fetch(gateway, path + "?starting_after=3", "last-event-id: 5"))[2] == b"".join(events[5:])
    for wrong in ("x", "-1", "1.5", str(len(events) + 1), "9" * 30):
        assert (await fetch(gateway, path, f"last-event-id: {wrong}"))[0] == 400
    assert (await look_up(gateway, headers["x-tidewheel-reply"]))["text"] == whole_text(40)


async def test_a_client_that_comes_back_in_time_misses_nothing(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine(pause=0.01))]})
    client = await connect(gateway)
    client.writer.write(post(STREAM, RESUMABLE))
    _, headers = await client.read_head()
    seen = b""
    while len(numbers_of(seen)) < 5:
        seen += await client.read_chunk()
    await client.close()
    path = f"/v1/replies/{headers['x-tidewheel-reply']}/events"
    _, _, rest = await fetch(gateway, path, f"last-event-id: {numbers_of(seen)[-1]}")
    assert text_of(without_heartbeats(seen + rest)) == whole_text(40)
    assert numbers_of(seen + rest) == list(range(1, 44))
    assert await gateway.value("tidewheel_streams_resumed_total", cause="client") == 1
    assert await gateway.value("tidewheel_requests_total") == 1


async def test_several_listeners_see_the_same_reply(start_upstream: StartUpstream, serve: StartGateway) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine(pause=0.005))]})
    key = "idempotency-key: m1"
    answers = await asyncio.gather(*(ask(gateway, STREAM, key) for _ in range(8)))
    assert len({body for _, _, body in answers}) == 1
    assert len({headers["x-tidewheel-reply"] for _, headers, _ in answers}) == 1
    assert await gateway.value("tidewheel_requests_total") == 1


async def test_a_reply_that_nobody_listens_to_is_cancelled(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    engine = TokenEngine(pause=0.02)
    upstream = await start_upstream(engine)
    gateway = await serve({"v1": [upstream]}, "--listener-timeout", "0.2")
    client = await connect(gateway)
    client.writer.write(post({**STREAM, "max_tokens": 5000}, RESUMABLE))
    _, headers = await client.read_head()
    await client.close()
    await asyncio.wait_for(upstream.calls[0].closed.wait(), PATIENCE_SECONDS)
    found = await until_status(gateway, headers["x-tidewheel-reply"], "cancelled")
    assert found["code"] == "no_listener"
    await gateway.until("tidewheel_in_flight", 0)


async def test_cancel_ends_a_reply_at_once_and_says_so_every_time(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    upstream = await start_upstream(TokenEngine(pause=0.02))
    gateway = await serve({"v1": [upstream]})
    client = await connect(gateway)
    client.writer.write(post({**STREAM, "max_tokens": 5000}, RESUMABLE))
    _, headers = await client.read_head()
    await client.read_chunk()
    path = f"/v1/replies/{headers['x-tidewheel-reply']}/cancel"
    answers = [orjson.loads((await fetch(gateway, path, method="POST"))[2]) for _ in range(3)]
    assert [answer["status"] for answer in answers] == ["cancelled"] * 3
    assert answers[0] == answers[2]
    body = await client.read_body(headers)
    assert orjson.loads(event_payloads(body)[-1])["error"]["code"] == "cancelled"
    await asyncio.wait_for(upstream.calls[0].closed.wait(), PATIENCE_SECONDS)
    await gateway.until("tidewheel_in_flight", 0)
    assert await gateway.value("tidewheel_requests_total") == 1


async def test_a_reply_is_its_owner_s_alone(start_upstream: StartUpstream, serve: StartGateway) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]})
    _, headers, _ = await ask(gateway, STREAM, RESUMABLE, "authorization: Bearer mine")
    path = f"/v1/replies/{headers['x-tidewheel-reply']}"
    for other in ((), ("authorization: Bearer yours",)):
        assert (await fetch(gateway, path, *other))[0] == 404
        assert (await fetch(gateway, path + "/events", *other))[0] == 404
        assert (await fetch(gateway, path + "/cancel", *other, method="POST"))[0] == 404
        assert (await fetch(gateway, path, *other, method="DELETE"))[0] == 404
    assert (await fetch(gateway, path, "authorization: Bearer mine"))[0] == 200


async def test_events_expire_before_the_text_does(start_upstream: StartUpstream, serve: StartGateway) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]}, "--reply-retention", "0.05")
    _, headers, _ = await ask(gateway, STREAM, RESUMABLE)
    path = f"/v1/replies/{headers['x-tidewheel-reply']}"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await fetch(gateway, path + "/events"))[0] != 410:
            await asyncio.sleep(0.01)
    _, answered, body = await fetch(gateway, path + "/events")
    assert orjson.loads(body)["error"]["code"] == "stream_expired"
    assert answered["link"].startswith(f"<{path}>")
    assert (await look_up(gateway, headers["x-tidewheel-reply"]))["text"] == whole_text(40)


async def test_what_is_erased_is_gone(start_upstream: StartUpstream, serve: StartGateway) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]})
    ids = [(await ask(gateway, STREAM, RESUMABLE))[1]["x-tidewheel-reply"] for _ in range(3)]
    assert (await fetch(gateway, f"/v1/replies/{ids[0]}", method="DELETE"))[0] == 200
    assert orjson.loads((await fetch(gateway, "/v1/replies", method="DELETE"))[2])["erased"] == 2
    for reply_id in ids:
        assert (await fetch(gateway, f"/v1/replies/{reply_id}"))[0] == 404

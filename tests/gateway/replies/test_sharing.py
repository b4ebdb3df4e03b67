"""Several gateways and a real Redis: any of them shows a reply, and one that dies loses none."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.programs import Gateway, GatewayProcess
from tests.gateway.replies.engines import TokenEngine, whole_text
from tests.gateway.replies.reading import numbers_of, text_of, without_heartbeats
from tests.gateway.replies.redis_server import RedisServer, running_redis
from tests.gateway.replies.test_resuming import RESUMABLE, fetch, get, look_up, until_status
from tests.gateway.sse_events import event_payloads
from tests.gateway.wire import HI, WireClient, ask, open_client, post
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.component,
    # Connections of redis-py that a fault has cut are closed by the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

STREAM = {**HI, "stream": True, "max_tokens": 40}
LONG = {**STREAM, "max_tokens": 80}


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with running_redis() as server:
        yield server


async def read_some(gateway: Gateway, body: dict[str, object], *headers: str, events: int = 5) -> tuple[str, bytes]:
    """The reply's id and what a client saw before it went away."""
    client = await open_client(gateway)
    client.writer.write(post(body, RESUMABLE, *headers))
    _, answered = await client.read_head()
    seen = b""
    while len(numbers_of(seen)) < events:
        seen += await client.read_chunk()
    await client.close()
    return answered["x-tidewheel-reply"], seen


async def read_until_cut(client: WireClient) -> bytes:
    """What came before the gateway hung up; fails when the answer came to its end."""
    seen = b""
    try:
        while chunk := await client.read_chunk():
            seen += chunk
    except (asyncio.IncompleteReadError, ValueError, ConnectionError):
        return seen
    raise AssertionError(f"the answer ended: {seen[-200:]!r}")


async def test_any_gateway_shows_a_reply_that_another_one_writes(
    start_upstream: StartUpstream, serve: StartGateway, redis: RedisServer
) -> None:
    upstream = await start_upstream(TokenEngine(pause=0.01))
    owner, other = [await serve({"v1": [upstream]}, "--redis-url", redis.url) for _ in range(2)]
    reply_id, seen = await read_some(owner, STREAM)
    status, _, rest = await fetch(other, f"/v1/replies/{reply_id}/events", f"last-event-id: {numbers_of(seen)[-1]}")
    assert status == 200
    assert text_of(without_heartbeats(seen + rest)) == whole_text(40)
    assert numbers_of(seen + rest) == list(range(1, 44))
    again = await fetch(owner, f"/v1/replies/{reply_id}/events")
    assert again[2] == (await fetch(other, f"/v1/replies/{reply_id}/events"))[2]
    assert (await look_up(other, reply_id))["text"] == whole_text(40)
    assert len(upstream.calls) == 1


async def test_the_same_key_on_two_gateways_in_the_same_moment_is_answered_once(
    start_upstream: StartUpstream, serve: StartGateway, redis: RedisServer
) -> None:
    engine = TokenEngine(pause=0.005)
    upstream = await start_upstream(engine)
    gateways = [await serve({"v1": [upstream]}, "--redis-url", redis.url) for _ in range(2)]
    for number in range(5):
        key = f"idempotency-key: m{number}"
        answers = await asyncio.gather(*(ask(gateway, STREAM, key) for gateway in gateways * 2))
        assert len({without_heartbeats(body) for _, _, body in answers}) == 1
        assert text_of(without_heartbeats(answers[0][2])) == whole_text(40)
        assert len(engine.bodies) == number + 1
    status, _, body = await ask(gateways[1], {**STREAM, "seed": 1}, "idempotency-key: m0")
    assert (status, orjson.loads(body)["error"]["code"]) == (422, "idempotency_key_reused")
    counted = [await gateway.value("tidewheel_requests_total", code_class="2xx") or 0 for gateway in gateways]
    assert sum(counted) == 5


async def test_a_whole_reply_is_shared_too(
    start_upstream: StartUpstream, serve: StartGateway, redis: RedisServer
) -> None:
    engine = TokenEngine(pause=0.01)
    upstream = await start_upstream(engine)
    gateways = [await serve({"v1": [upstream]}, "--redis-url", redis.url) for _ in range(2)]
    answers = await asyncio.gather(*(ask(gateway, HI, "idempotency-key: w") for gateway in gateways))
    assert answers[0][2] == answers[1][2]
    assert len(engine.bodies) == 1


async def test_cancel_and_erase_reach_the_gateway_that_writes(
    start_upstream: StartUpstream, serve: StartGateway, redis: RedisServer
) -> None:
    upstream = await start_upstream(TokenEngine(pause=0.05))
    owner, other = [await serve({"v1": [upstream]}, "--redis-url", redis.url) for _ in range(2)]
    reply_id, _ = await read_some(owner, LONG, events=2)
    _, _, body = await fetch(other, f"/v1/replies/{reply_id}/cancel", method="POST")
    assert orjson.loads(body)["status"] == "cancelled"
    await asyncio.wait_for(upstream.calls[0].closed.wait(), PATIENCE_SECONDS)
    assert (await fetch(other, f"/v1/replies/{reply_id}", method="DELETE"))[0] == 200
    assert (await fetch(other, f"/v1/replies/{reply_id}"))[0] == 404
    assert reply_id not in str(await redis.call("KEYS", "*"))


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
async def test_a_gateway_that_dies_loses_no_reply(
    start_upstream: StartUpstream,
    serve: StartGateway,
    serve_process: StartGateway,
    redis: RedisServer,
    tmp_path: Path,
    sealed: bool,
) -> None:
    """GIE#548, dynamo#11915: clients that reconnect resume elsewhere; no byte is missing, repeated or changed."""
    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123456789abcdef")
    # So long a lease, because a dead gateway is known by its port, and a slow one is not to be taken for dead.
    options = ["--redis-url", redis.url, "--lease-seconds", "60", *(["--reply-key-file", str(key)] if sealed else [])]
    upstream = await start_upstream(TokenEngine(pause=0.05))
    dying = await serve_process({"v1": [upstream]}, *options)
    other = await serve({"v1": [upstream]}, *options)
    assert isinstance(dying, GatewayProcess)
    count = 10 if sealed else 100
    begun = await asyncio.gather(*(read_some(dying, LONG) for _ in range(count)))
    dying.process.kill()
    rests = await asyncio.gather(
        *(fetch(other, f"/v1/replies/{name}/events", f"last-event-id: {numbers_of(seen)[-1]}") for name, seen in begun)
    )
    for (_, seen), (status, _, rest) in zip(begun, rests, strict=True):
        assert status == 200
        whole = without_heartbeats(seen + rest)
        assert text_of(whole) == whole_text(80)
        assert numbers_of(whole) == list(range(1, len(event_payloads(whole)) + 1))
    assert await other.value("tidewheel_streams_resumed_total", cause="gateway") == count
    assert await other.value("tidewheel_requests_total", code_class="2xx") == count
    await other.until("tidewheel_in_flight", 0)
    if sealed:
        assert '"content":' not in str([await redis.call("GET", f"tw1:l:{name}") for name, _ in begun])


async def test_a_gateway_that_wakes_up_after_its_replies_were_taken_writes_nothing_any_more(
    start_upstream: StartUpstream, serve: StartGateway, serve_process: StartGateway, redis: RedisServer
) -> None:
    """Two writers: what the old owner would still say is not in the log. Its client is sent away, and may come back."""
    upstream = await start_upstream(TokenEngine(pause=0.02))
    sleeper = await serve_process({"v1": [upstream]}, "--redis-url", redis.url)
    other = await serve({"v1": [upstream]}, "--redis-url", redis.url)
    assert isinstance(sleeper, GatewayProcess)
    client = await open_client(sleeper)
    client.writer.write(post(LONG, RESUMABLE))
    _, headers = await client.read_head()
    reply_id, seen = headers["x-tidewheel-reply"], await client.read_chunk()
    sleeper.process.send_signal(signal.SIGSTOP)
    following = asyncio.create_task(
        fetch(other, f"/v1/replies/{reply_id}/events", f"last-event-id: {numbers_of(seen)[-1]}")
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await other.value("tidewheel_streams_resumed_total", cause="gateway"):
            await asyncio.sleep(0.05)
    sleeper.process.send_signal(signal.SIGCONT)
    assert b"not_resumable" not in await read_until_cut(client)
    again = await fetch(sleeper, f"/v1/replies/{reply_id}/events", f"last-event-id: {numbers_of(seen)[-1]}")
    _, _, rest = await following
    assert without_heartbeats(again[2]) == without_heartbeats(rest)
    whole = without_heartbeats(seen + rest)
    assert text_of(whole) == whole_text(80)
    assert numbers_of(whole) == list(range(1, len(event_payloads(whole)) + 1))


async def test_a_gateway_that_is_only_late_keeps_its_replies(
    start_upstream: StartUpstream, serve: StartGateway, redis: RedisServer
) -> None:
    """On a busy machine signs of life expired, and gateways took replies from each other until clients lost them."""
    engine = TokenEngine(pause=0.02)
    upstream = await start_upstream(engine)
    late = await serve({"v1": [upstream]}, "--redis-url", redis.url, "--lease-seconds", "240")  # the next sign: in 60 s
    other = await serve({"v1": [upstream]}, "--redis-url", redis.url, "--lease-seconds", "0.2")
    reply_id, seen = await read_some(late, LONG)
    owner = await redis.call("HGET", f"tw1:r:{reply_id}", "owner")
    assert isinstance(owner, bytes)
    following = asyncio.create_task(
        fetch(other, f"/v1/replies/{reply_id}/events", f"last-event-id: {numbers_of(seen)[-1]}")
    )
    assert await redis.call("DEL", f"tw1:g:{owner.decode()}") == 1
    _, _, rest = await following
    assert text_of(without_heartbeats(seen + rest)) == whole_text(80)
    assert len(engine.bodies) == 1, "nobody carried on with a reply that was in progress"
    assert await redis.call("HGET", f"tw1:r:{reply_id}", "owner") == owner


async def test_a_gateway_that_leaves_hands_over_what_is_still_open(
    start_upstream: StartUpstream, serve: StartGateway, serve_process: StartGateway, redis: RedisServer
) -> None:
    upstream = await start_upstream(TokenEngine(pause=0.02))
    leaving = await serve_process({"v1": [upstream]}, "--redis-url", redis.url, "--drain-timeout", "0.2")
    other = await serve({"v1": [upstream]}, "--redis-url", redis.url)
    assert isinstance(leaving, GatewayProcess)
    client = await open_client(leaving)
    client.writer.write(post(LONG, RESUMABLE))
    _, headers = await client.read_head()
    seen = await client.read_chunk()
    stopping = asyncio.create_task(leaving.stop(signal.SIGINT))
    try:
        while chunk := await client.read_chunk():
            seen += chunk
    except (asyncio.IncompleteReadError, ValueError, ConnectionError):
        pass
    assert await stopping == 0
    assert b"error" not in seen, "a hand-over is no end"
    last = numbers_of(seen)[-1]
    _, _, rest = await fetch(other, f"/v1/replies/{headers['x-tidewheel-reply']}/events", f"last-event-id: {last}")
    assert text_of(without_heartbeats(seen + rest)) == whole_text(80)


FAULTS = ["killed", "paused", "full"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_without_its_store_a_gateway_serves_on_says_so_and_recovers_by_itself(
    start_upstream: StartUpstream, serve: StartGateway, redis: RedisServer, connect: Connect, fault: str
) -> None:
    upstream = await start_upstream(TokenEngine(pause=0.005))
    gateway = await serve({"v1": [upstream]}, "--redis-url", redis.url, "--store-timeout", "0.2")
    client = await connect(gateway)
    client.writer.write(post(LONG, RESUMABLE))
    _, headers = await client.read_head()
    assert headers["x-tidewheel-resumable"] == "true"
    assert await client.read_chunk()
    await harm(redis, fault)
    body = without_heartbeats(await client.read_body(headers))  # a reply in progress goes on
    assert text_of(body).endswith(whole_text(80)[-20:])
    assert event_payloads(body)[-1] == b"[DONE]"
    await gateway.wait_for_log("the reply store is away")
    assert await gateway.value("tidewheel_reply_store_away") == 1
    status, headers, body = await ask(gateway, STREAM, RESUMABLE)
    assert (status, headers["x-tidewheel-resumable"]) == (200, "false")
    assert text_of(without_heartbeats(body)) == whole_text(40)
    assert "x-tidewheel-reply" not in headers
    assert await gateway.value("tidewheel_replies_not_resumable_total") == 1
    assert await gateway.value("tidewheel_requests_total") == 2
    await heal(redis, fault)
    await gateway.until("tidewheel_reply_store_away", 0)
    _, headers, _ = await ask(gateway, STREAM, RESUMABLE)
    assert headers["x-tidewheel-resumable"] == "true"
    assert await gateway.value("tidewheel_request_errors_total") == 0


async def test_a_store_that_hangs_keeps_nobody_waiting(
    start_upstream: StartUpstream, serve: StartGateway, redis: RedisServer
) -> None:
    gateway = await serve(
        {"v1": [await start_upstream(TokenEngine())]}, "--redis-url", redis.url, "--store-timeout", "0.2"
    )
    redis.send(signal.SIGSTOP)
    try:
        status, headers, body = await ask(gateway, STREAM, RESUMABLE)
    finally:
        redis.send(signal.SIGCONT)
    assert (status, text_of(without_heartbeats(body))) == (200, whole_text(40))
    assert headers["x-tidewheel-resumable"] == "false"
    await gateway.until("tidewheel_reply_store_away", 0)


async def harm(redis: RedisServer, fault: str) -> None:
    """Make it fail."""
    if fault == "killed":
        await redis.kill()
    elif fault == "paused":
        redis.send(signal.SIGSTOP)
    else:
        await redis.call("CONFIG", "SET", "maxmemory", "1")


async def heal(redis: RedisServer, fault: str) -> None:
    """And recover; one that was killed comes back empty."""
    if fault == "killed":
        await redis.start()
    elif fault == "paused":
        redis.send(signal.SIGCONT)
    else:
        await redis.call("CONFIG", "SET", "maxmemory", "0")


async def test_what_cannot_be_looked_up_now_is_said(
    start_upstream: StartUpstream, serve: StartGateway, redis: RedisServer
) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]}, "--redis-url", redis.url)
    await redis.kill()
    status, headers, body = await fetch(gateway, "/v1/replies/req-0/events")
    assert (status, orjson.loads(body)["error"]["code"]) == (503, "reply_store_unavailable")
    assert int(headers["retry-after"]) >= 1


async def test_nobody_listening_anywhere_cancels(
    start_upstream: StartUpstream, serve: StartGateway, redis: RedisServer, connect: Connect
) -> None:
    upstream = await start_upstream(TokenEngine(pause=0.05))
    options = ("--redis-url", redis.url, "--listener-timeout", "0.5", "--lease-seconds", "0.4")
    owner, other = [await serve({"v1": [upstream]}, *options) for _ in range(2)]
    reply_id, seen = await read_some(owner, LONG, events=2)
    follower = await connect(other)
    follower.writer.write(get(f"/v1/replies/{reply_id}/events", f"last-event-id: {numbers_of(seen)[-1]}"))
    await follower.read_head()
    await asyncio.sleep(1.0)
    assert (await look_up(owner, reply_id))["status"] == "in_progress", "somebody listens at the other gateway"
    await redis.call("DEL", f"tw1:n:{reply_id}")
    await follower.close()
    await redis.call("DEL", f"tw1:n:{reply_id}")
    assert (await until_status(owner, reply_id, "cancelled"))["code"] == "no_listener"

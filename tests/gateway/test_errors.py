"""Whatever a client sends wrongly is answered with a typed 4xx and a sentence; nothing else is affected."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import openai
import orjson
import pytest
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.programs import table, write_routing
from tests.gateway.upstreams import replies, says
from tests.gateway.wire import HI, ask, post
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.component


def error_of(body: bytes) -> dict[str, object]:
    """The error object, checked for its shape."""
    error: dict[str, object] = orjson.loads(body)["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert str(error["message"]).endswith(".")
    return error


BAD_BODIES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 400, "invalid_json"),
    "not JSON": (b"{", 400, "invalid_json"),
    "not UTF-8": (b'{"model": "\xff"}', 400, "invalid_json"),
    "a list": (b"[]", 400, "invalid_json"),
    "null": (b"null", 400, "invalid_json"),
    "deep nesting": (b"[" * 100_000, 400, "invalid_json"),
    "no model": (b"{}", 400, "missing_model"),
    "model of another type": (b'{"model": 1}', 400, "missing_model"),
    "empty model": (b'{"model": ""}', 400, "missing_model"),
    "stream of another type": (b'{"model": "chat", "stream": "yes"}', 400, "invalid_type"),
    "user of another type": (b'{"model": "chat", "user": 7}', 400, "invalid_type"),
    "cache key of another type": (b'{"model": "chat", "prompt_cache_key": {}}', 400, "invalid_type"),
    "unknown model": (b'{"model": "gpt-9"}', 404, "model_not_found"),
    "unknown namespace": (b'{"model": "other/chat"}', 404, "model_not_found"),
    "odd model": (b'{"model": "../../etc\\u0000/x/y"}', 404, "model_not_found"),
    "too long": (b" " * 2001, 413, "request_too_large"),
}


async def test_bad_bodies_get_a_typed_4xx_with_a_sentence(start_upstream: StartUpstream, serve: StartGateway) -> None:
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]}, "--max-body-bytes", "200000")
    for name, (body, status, code) in BAD_BODIES.items():
        sent = b" " * 200_001 if name == "too long" else body
        got, headers, answer = await ask(gateway, sent)
        error = error_of(answer)
        assert (got, error["code"]) == (status, code), name
        assert error["type"] == "invalid_request_error"
        assert headers["content-type"] == "application/json"
    assert upstream.calls == []
    assert (await ask(gateway, HI))[0] == 200


async def test_an_unknown_model_is_told_which_there_are(
    start_upstream: StartUpstream, serve: StartGateway, client_of: Callable[..., openai.AsyncOpenAI]
) -> None:
    client = client_of(await serve({"v1": [await start_upstream(says("hi"))]}))
    with pytest.raises(openai.NotFoundError, match=r"'gpt-9' does not exist here. Available models: chat\.") as caught:
        await client.chat.completions.create(model="gpt-9", messages=[])
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-9")


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET /v1/chat/completions HTTP/1.1\r\nhost: a\r\n\r\n", 405, "method_not_allowed"),
        (b"DELETE /v1/models HTTP/1.1\r\nhost: a\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n", 404, "unknown_path"),
        (b"GET /routing HTTP/1.1\r\nhost: a\r\n\r\n", 404, "unknown_path"),
        (b"POST /add_worker?url=http://evil HTTP/1.1\r\nhost: a\r\n\r\n", 404, "unknown_path"),
        (b"GET /v1/models/../../metrics HTTP/1.1\r\nhost: a\r\n\r\n", 404, "model_not_found"),
        (
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            400,
            "malformed_http",
        ),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"nonsense\r\n\r\n", 400, "malformed_http"),
    ],
    ids=["get", "delete", "metrics", "routing", "admin", "dots", "smuggling", "long header", "nonsense"],
)
async def test_bad_requests_get_a_typed_4xx_with_a_sentence(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect, request_bytes: bytes, status: int, code: str
) -> None:
    gateway = await serve({"v1": [await start_upstream(says("hi"))]})
    client = await connect(gateway)
    client.writer.write(request_bytes)
    got, headers, body = await client.read_all()
    assert (got, error_of(body)["code"]) == (status, code)
    if got == 405:
        assert headers["allow"] in {"GET", "POST"}
    if got in {400, 431}:
        assert headers["connection"] == "close"
        assert await client.at_end()


async def test_slow_headers_and_bodies_get_408(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]}, "--header-timeout", "0.1", "--body-timeout", "0.1")
    for sent in (b"POST /v1/compl", post(HI)[:-5]):
        client = await connect(gateway)
        client.writer.write(sent)
        status, _, body = await client.read_all()
        assert (status, error_of(body)["code"]) == (408, "request_timeout")
        assert await client.at_end()
    assert upstream.calls == []


async def test_an_idle_connection_is_closed_in_time(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    gateway = await serve({"v1": [await start_upstream(says("hi"))]}, "--keep-alive-timeout", "0.1")
    client = await connect(gateway)
    assert await client.at_end()
    client = await connect(gateway)
    client.writer.write(post(HI))
    assert (await client.read_all())[0] == 200
    assert await client.at_end()


async def test_a_413_is_sent_before_the_body_and_can_be_read(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    """GIE#2928: the client is still sending when it is refused; a reset would take the answer from it."""
    gateway = await serve({"v1": [await start_upstream(says("hi"))]})
    client = await connect(gateway)
    client.writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n")
    client.writer.write(b"x" * 1_000_000)
    status, _, body = await client.read_all()
    assert status == 413
    assert "8388608 bytes" in str(error_of(body)["message"])


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_the_engine_s_own_refusals_reach_the_client_once_and_unchanged(
    start_upstream: StartUpstream, serve: StartGateway, status: int
) -> None:
    """AIBrix#2594, sglang#25811: and the replica stays in rotation."""
    said = b'{"error":{"message":"n is too large.","type":"invalid_request_error","param":"n","code":null}}'
    upstream = await start_upstream(replies(status, said))
    gateway = await serve({"v1": [upstream]})
    for stream in (False, True):
        got, _, body = await ask(gateway, {**HI, "stream": stream})
        assert (got, body) == (status, said)
    assert len(upstream.calls) == 2
    assert await gateway.value("tidewheel_request_errors_total") == 0
    assert await gateway.value("tidewheel_requests_total", code_class="4xx", version="v1") == 2


async def test_an_engine_that_refuses_our_token_is_not_the_client_s_fault(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    upstream = await start_upstream(
        replies(401, b'{"error":{"message":"bad token","type":"x","param":null,"code":null}}')
    )
    gateway = await serve({"v1": [upstream]})
    status, _, body = await ask(gateway, HI)
    assert status == 502
    assert "credentials" in str(error_of(body)["message"])


async def test_pins_reach_what_carries_weight_or_is_kept_warm_and_nothing_else(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    ups = {version: [await start_upstream(says(version))] for version in ("v1", "v2", "v3", "v4")}
    keep_warm = [
        {"version": "v2", "digest": "d2", "weight": 10_000, "until": "2999-01-01T00:00:00Z"},
        {"version": "v3", "digest": "d3", "weight": 10_000, "until": "2001-01-01T00:00:00Z"},
    ]
    weights = {"v1": 10_000, "v4": 0}
    gateway = await serve(ups, weights=weights, keepWarm=keep_warm)
    for version in ("v1", "v2"):
        status, headers, _ = await ask(gateway, HI, f"x-version-pin: {version}")
        assert (status, headers["x-tidewheel-version"]) == (200, version)
    for version in ("v3", "v4", "v9", ""):
        status, headers, body = await ask(gateway, HI, f"x-version-pin: {version}")
        error = error_of(body)
        assert (status, error["code"], error["param"]) == (404, "version_not_available", "X-Version-Pin")
        assert "Versions that can be pinned: v1, v2." in str(error["message"])
    assert not ups["v3"][0].calls
    assert not ups["v4"][0].calls
    assert await gateway.value("tidewheel_requests_total", cohort="pinned", version="v2", code_class="2xx") == 1


async def test_a_request_waits_a_moment_for_the_first_replica_of_its_version(
    start_upstream: StartUpstream, serve: StartGateway, tmp_path: Path
) -> None:
    """dynamo#13622: a table may name a version before its endpoints are seen."""
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": []}, "--replica-wait", "30", "--static-poll-seconds", "0.02")
    waiting = asyncio.create_task(ask(gateway, HI))
    await gateway.until("tidewheel_in_flight", 1)
    assert not waiting.done()
    write_routing(tmp_path / "routing.json", [table(weights={"v1": 10_000})], {"default/chat-v1": [upstream.address]})
    status, _, _ = await waiting
    assert status == 200


async def test_a_share_without_replicas_is_refused_and_never_handed_on(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    gateway = await serve({"v1": [await start_upstream(says("hi"))], "v2": []}, weights={"v1": 5000, "v2": 5000})
    statuses = []
    for number in range(40):
        status, headers, body = await ask(gateway, HI, f"x-conversation-id: c{number}")
        assert (status == 200) == (headers["x-tidewheel-version"] == "v1")
        if status != 200:
            error = error_of(body)
            assert (status, error["code"]) == (503, "no_ready_replica")
            assert headers["retry-after"] == "2"
        statuses.append(status)
    assert set(statuses) == {200, 503}
    assert await gateway.value(
        "tidewheel_request_errors_total", version="v2", reason="no_ready_replica"
    ) == statuses.count(503)
    status, _, body = await ask(gateway, HI, "x-version-pin: v2")
    assert (status, error_of(body)["code"]) == (404, "version_not_available")


async def test_conversations_stick_by_header_cache_key_or_user(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    gateway = await serve({version: [await start_upstream(says("hi"))] for version in ("v1", "v2")})
    for number in range(10):
        key, seen = f"key-{number}", set()
        for body, headers in (
            (HI, [f"x-conversation-id: {key}"]),
            ({**HI, "prompt_cache_key": key}, []),
            ({**HI, "user": key}, []),
            ({**HI, "user": "another"}, [f"x-conversation-id: {key}"]),
            ({**HI, "user": "another", "prompt_cache_key": key}, []),
        ):
            seen.add((await ask(gateway, body, *headers))[1]["x-tidewheel-version"])
        assert len(seen) == 1


async def test_pods_without_a_table_are_held_and_it_is_said(start: StartGateway, tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    endpoint = {"uid": "u", "host": "127.0.0.1", "port": 1}
    write_routing(path, [table(weights={"v1": 10_000})], {"default/mini/v1": [endpoint]})
    gateway = await start("--static", str(path))
    status, headers, body = await ask(gateway, {**HI, "model": "mini"})
    assert (status, error_of(body)["code"]) == (503, "no_routing_table")
    assert int(headers["retry-after"]) >= 1


async def test_a_routing_file_takes_effect_when_replaced_and_a_bad_one_changes_nothing(
    start_upstream: StartUpstream, start: StartGateway, tmp_path: Path
) -> None:
    path = tmp_path / "routing.json"
    ends = {f"default/chat-{v}": [(await start_upstream(says(v))).address] for v in ("v1", "v2")}
    write_routing(path, [table(weights={"v1": 10_000, "v2": 0})], ends)
    gateway = await start("--static", str(path), "--static-poll-seconds", "0.02")
    assert (await ask(gateway, HI))[1]["x-tidewheel-version"] == "v1"
    write_routing(path, [table(weights={"v1": 0, "v2": 9_999}, generation=2)], ends)
    await gateway.wait_for_log("not taken over")
    assert (await ask(gateway, HI))[1]["x-tidewheel-version"] == "v1"
    write_routing(path, [table(weights={"v1": 0, "v2": 10_000}, generation=3)], ends)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await gateway.get("/routing/default/chat", admin=True))[1]["generation"] != 3:
            await asyncio.sleep(0.02)
    assert (await ask(gateway, HI))[1]["x-tidewheel-version"] == "v2"
    assert (await gateway.get("/routing/default/nope", admin=True))[0] == 404


async def test_head_is_answered_like_get_without_a_body(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    gateway = await serve({"v1": [await start_upstream(says("hi"))]})
    client = await connect(gateway)
    client.writer.write(b"HEAD /healthz HTTP/1.1\r\nhost: a\r\n\r\nHEAD /v1/completions HTTP/1.1\r\nhost: a\r\n\r\n")
    assert (await client.read_head())[0] == 200
    assert (await client.read_head())[0] == 405
    client.writer.write(post(HI))
    assert (await client.read_all())[0] == 200

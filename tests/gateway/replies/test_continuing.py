"""A replica is lost in the middle of a reply: another one carries on, and what was shown stays as it was."""

import asyncio
from collections.abc import Callable

import openai
import orjson
import pytest
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.replies.engines import PROMPT_IDS, TokenEngine, whole_text
from tests.gateway.replies.reading import numbers_of, text_of, without_heartbeats
from tests.gateway.sse_events import event_payloads
from tests.gateway.wire import HI, ask

pytestmark = pytest.mark.component

STREAM = {**HI, "stream": True, "max_tokens": 30}
QUICK = ("--suspect-seconds", "0.2", "--probe-timeout", "0.1", "--placement", "least-loaded")


def check_whole(answer: bytes, *, tokens: int) -> None:
    """One reply, whoever wrote it."""
    assert text_of(answer) == whole_text(tokens)
    assert numbers_of(answer) == list(range(1, len(event_payloads(answer)) + 1))
    *chunks, last = event_payloads(answer)
    assert last == b"[DONE]"
    parsed = [orjson.loads(chunk) for chunk in chunks]
    assert {(chunk["id"], chunk["object"]) for chunk in parsed} == {("chatcmpl-7", "chat.completion.chunk")}
    assert parsed[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
    assert sum("usage" in chunk for chunk in parsed) == 1
    assert b"token_ids" not in answer
    assert b"text_held" not in answer


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("fault", ["reset", "stall"])
async def test_the_text_is_prefix_and_continuation(
    start_upstream: StartUpstream, serve: StartGateway, path: str, fault: str
) -> None:
    """nuguard#455, litellm#36267: by token ids, without a repeat or a gap; usage speaks of the whole reply."""
    engines = [
        TokenEngine(break_after=10 if fault == "reset" else None, stall_after=10 if fault == "stall" else None, hold=4)
        for _ in range(2)
    ]
    upstreams = [await start_upstream(engine) for engine in engines]
    good = TokenEngine(hold=4)
    gateway = await serve({"v1": [*upstreams, await start_upstream(good)]}, *QUICK)
    prompt = {"messages": HI["messages"]} if "chat" in path else {"prompt": PROMPT_IDS}
    body = {"model": "chat", "stream": True, "max_tokens": 30, **prompt, "stream_options": {"include_usage": True}}
    asked = 0
    while not any(engine.bodies for engine in engines):  # until one begins on a replica that fails
        asked += 1
        status, _, answer = await ask(gateway, body, path=path)
        assert status == 200
        check_whole(without_heartbeats(answer), tokens=30)
    assert await gateway.value("tidewheel_streams_resumed_total", cause="replica") in {1, 2}
    assert await gateway.value("tidewheel_requests_total") == asked
    assert await gateway.value("tidewheel_request_errors_total") == 0
    await gateway.until("tidewheel_in_flight", 0)


@pytest.mark.parametrize(
    "extra",
    [
        {"seed": 7},
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
    ids=lambda extra: next(iter(extra)),
)
async def test_what_cannot_be_continued_truthfully_ends_with_an_error_that_keeps_the_text(
    start_upstream: StartUpstream, serve: StartGateway, extra: dict[str, object]
) -> None:
    """dynamo#7930."""
    upstreams = [await start_upstream(TokenEngine(break_after=10)) for _ in range(2)]
    gateway = await serve({"v1": upstreams})
    _, _, body = await ask(gateway, {**STREAM, **extra})
    assert text_of(body) == whole_text(10)
    error = orjson.loads(event_payloads(body)[-1])["error"]
    assert error["code"] == "stream_broken"
    assert "cannot be continued" in error["message"]
    assert sum(len(upstream.calls) for upstream in upstreams) == 1
    assert await gateway.value("tidewheel_streams_lost_total") == 1


async def test_a_slow_replica_is_not_a_dead_one(start_upstream: StartUpstream, serve: StartGateway) -> None:
    """gpustack#6012: silence, probe fine, others flowing: wait."""
    slow, other = TokenEngine(pause=0.4), TokenEngine(pause=0.4)
    upstreams = [await start_upstream(engine) for engine in (slow, other)]
    gateway = await serve({"v1": upstreams}, *QUICK)
    _, _, body = await ask(gateway, {**STREAM, "max_tokens": 3})
    assert text_of(without_heartbeats(body)) == whole_text(3)
    assert len(slow.bodies) + len(other.bodies) == 1


async def test_silence_before_the_first_token_is_no_fault(start_upstream: StartUpstream, serve: StartGateway) -> None:
    engines = [TokenEngine(stall_after=0) for _ in range(2)]
    gateway = await serve({"v1": [await start_upstream(engine) for engine in engines]}, *QUICK)
    asking = asyncio.create_task(ask(gateway, STREAM))
    done, _ = await asyncio.wait({asking}, timeout=1.0)
    assert not done
    assert sum(len(engine.bodies) for engine in engines) == 1
    asking.cancel()


async def test_with_no_other_replica_the_client_is_told(start_upstream: StartUpstream, serve: StartGateway) -> None:
    """free-coding-models#137."""
    gateway = await serve({"v1": [await start_upstream(TokenEngine(break_after=5))]}, "--continuation-wait", "0.1")
    _, _, body = await ask(gateway, STREAM)
    assert text_of(body) == whole_text(5)
    assert orjson.loads(event_payloads(body)[-1])["error"]["code"] == "no_ready_replica"


async def test_many_lost_streams_are_continued_a_few_at_a_time(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    """dynamo#10470."""
    dying, good = TokenEngine(break_after=3), TokenEngine()
    upstreams = [await start_upstream(engine) for engine in (dying, good)]
    gateway = await serve({"v1": upstreams}, "--continuations-at-once", "2")
    answers = await asyncio.gather(*(ask(gateway, STREAM) for _ in range(40)))
    assert {text_of(without_heartbeats(body)) for _, _, body in answers} == {whole_text(30)}
    assert await gateway.value("tidewheel_streams_resumed_total", cause="replica") == len(dying.bodies)
    assert await gateway.value("tidewheel_streams_lost_total") == 0


async def test_the_openai_client_sees_nothing_of_it(
    start_upstream: StartUpstream, serve: StartGateway, client_of: Callable[..., openai.AsyncOpenAI]
) -> None:
    upstreams = [await start_upstream(engine) for engine in (TokenEngine(break_after=6), TokenEngine())]
    client = client_of(await serve({"v1": upstreams}, "--placement", "least-loaded"))
    for _ in range(2):  # one of the two begins on the replica that breaks
        stream = await client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "hi"}], max_tokens=20, stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole_text(20)
        assert chunks[-1].choices[0].finish_reason == "length"

"""A message that is sent again gets the answer that it has already; nothing is written or counted twice."""

import asyncio

import orjson
import pytest
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.replies.engines import TokenEngine, whole_text
from tests.gateway.replies.reading import text_of
from tests.gateway.upstreams import replies
from tests.gateway.wire import HI, ask, post
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.component

STREAM = {**HI, "stream": True}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("form", ["header", "body"])
async def test_the_same_key_and_body_attach(
    start_upstream: StartUpstream, serve: StartGateway, stream: bool, form: str
) -> None:
    """macprovider#200, #762."""
    engine = TokenEngine(pause=0.002)
    gateway = await serve({"v1": [await start_upstream(engine)]})
    body: dict[str, object] = {**HI, "stream": stream, **({"request_id": "m-1"} if form == "body" else {})}
    headers = ["idempotency-key: m-1"] if form == "header" else []
    together = await asyncio.gather(*(ask(gateway, body, *headers) for _ in range(5)))
    later = await ask(gateway, body, *headers)
    assert {(status, answer) for status, _, answer in [*together, later]} == {(200, later[2])}
    assert len(engine.bodies) == 1
    assert await gateway.value("tidewheel_requests_total") == 1


async def test_the_same_key_with_another_body_is_refused(start_upstream: StartUpstream, serve: StartGateway) -> None:
    engine = TokenEngine()
    gateway = await serve({"v1": [await start_upstream(engine)]})
    assert (await ask(gateway, STREAM, "idempotency-key: m"))[0] == 200
    status, _, body = await ask(gateway, {**STREAM, "temperature": 1}, "idempotency-key: m")
    assert (status, orjson.loads(body)["error"]["code"]) == (422, "idempotency_key_reused")
    assert (await ask(gateway, STREAM, "idempotency-key: m", "authorization: Bearer other"))[0] == 200
    assert len(engine.bodies) == 2, "a key is its user's own"


async def test_a_message_that_failed_before_its_first_token_may_be_sent_again(
    start_upstream: StartUpstream, serve: StartGateway
) -> None:
    upstream = await start_upstream(replies(500, b'{"error":{"message":"oops","type":"server_error"}}'))
    gateway = await serve({"v1": [upstream]}, "--suspension-seconds", "0")
    assert (await ask(gateway, STREAM, "idempotency-key: m"))[0] == 500
    upstream.behave = TokenEngine()
    status, _, body = await ask(gateway, STREAM, "idempotency-key: m")
    assert (status, text_of(body)) == (200, whole_text(8))


async def test_an_sdk_s_retry_attaches_to_the_request_it_repeats(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    """The SDK sends no key; its first copy hangs on a connection that it has given up."""
    engine = TokenEngine(pause=0.01)
    gateway = await serve({"v1": [await start_upstream(engine)]}, "--resend-seconds", "0.05")
    first = await connect(gateway)
    first.writer.write(post(STREAM, "x-stainless-retry-count: 0"))
    _, headers = await first.read_head()
    again = await ask(gateway, STREAM, "x-stainless-retry-count: 1")
    assert await first.read_body(headers) == again[2]
    assert len(engine.bodies) == 1
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(engine.bodies) == 1:
            await ask(gateway, STREAM, "x-stainless-retry-count: 1")
    assert len(engine.bodies) == 2, "seconds later it is a new request"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_the_same_words_said_twice_are_two_messages(
    start_upstream: StartUpstream, serve: StartGateway, path: str
) -> None:
    """Only what an SDK calls a retry attaches without a key, and for seconds."""
    engine = TokenEngine()
    gateway = await serve({"v1": [await start_upstream(engine)]}, "--resend-seconds", "0.05")
    body = STREAM if path == "/v1/chat/completions" else {"model": "chat", "input": "hi"}
    for count, headers in enumerate([(), ("x-stainless-retry-count: 0",), ("x-stainless-retry-count: 0",), ()], 1):
        assert (await ask(gateway, body, *headers, path=path))[0] == 200
        assert len(engine.bodies) == count
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(engine.bodies) == 4:  # the latest of an SDK's is forgotten, however long its text is kept
            await ask(gateway, body, "x-stainless-retry-count: 1", path=path)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["idempotency-key: a"], {"request_id": "b"}),
        (["idempotency-key: " + "x" * 300], {}),
        ([], {"request_id": 7}),
        ([], {"resumable": "yes"}),
    ],
)
async def test_bad_terms_are_refused(
    start_upstream: StartUpstream, serve: StartGateway, headers: list[str], body: dict[str, object]
) -> None:
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]})
    status, _, answer = await ask(gateway, {**STREAM, **body}, *headers)
    assert status == 400
    assert orjson.loads(answer)["error"]["param"]

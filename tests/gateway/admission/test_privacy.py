"""No word of a prompt, no key and no header gets into logs, metrics or error bodies, however a request ends."""

import asyncio
import logging
from pathlib import Path

import orjson
import pytest
from tests.gateway.admission.conftest import KEYS, authorization
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.upstreams import Behaviour, Call, chat_event, hangs, replies, says
from tests.gateway.wire import ask, post

SECRET = "the-heron-lands-at-noon"
HEADER = "header-value-nobody-may-see"
STOLEN = "sk-stolen-0123456789-abcdef"


async def breaks(call: Call) -> None:
    call.begin_stream()
    call.chunk(chat_event("one"))
    await asyncio.sleep(0.01)
    call.hang_up()


async def gibberish(call: Call) -> None:
    call.begin_stream()
    call.chunk(b"data: not json\n\n")
    call.end_chunks()


ENDS: dict[str, Behaviour] = {
    "served": says("fine"),
    "breaks": breaks,
    "gibberish": gibberish,
    "internal error": replies(500, b"<html>trace</html>"),
    "full": replies(429, b'{"error":{"message":"full","type":"x","param":null,"code":null}}'),
    "hangs": hangs,
}


@pytest.mark.parametrize("end", ENDS)
async def test_nothing_of_a_request_s_content_is_kept_or_told(
    serve: StartGateway,
    start_upstream: StartUpstream,
    connect: Connect,
    key_file: Path,
    end: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    upstream = await start_upstream(ENDS[end])
    tiers = {"free": {"tokensPerMinute": 3000, "maxOutputTokens": 1000}}
    gateway = await serve({"v1": [upstream]}, "--key-file", str(key_file), "--first-byte-timeout", "0.2", tiers=tiers)
    bodies = list[bytes]()
    messages = [{"role": "user", "content": f"{SECRET} " * 20}]
    for body in (
        {"model": "chat", "messages": messages, "stream": True},
        {"model": "chat", "messages": messages},
        {"model": "chat", "messages": messages, "max_tokens": SECRET},
        {"model": "chat", "messages": messages, "max_tokens": 10**6},
        {"model": "absent", "messages": messages},
        orjson.dumps({"model": "chat", "messages": messages})[:-5],
    ):
        for who in (authorization("bob"), f"authorization: Bearer {STOLEN}"):
            bodies.append((await ask(gateway, body, who, f"x-custom: {HEADER}"))[2])
    gone = await connect(gateway)
    gone.writer.write(post({"model": "chat", "messages": messages}, authorization("bob"), f"x-custom: {HEADER}"))
    await gone.close()
    _, metrics = await gateway.get("/metrics", admin=True)
    told = "\n".join([*map(str, gateway.logs), caplog.text, metrics, *(body.decode() for body in bodies)])
    for secret in (SECRET, HEADER, STOLEN, KEYS["bob"], "bob"):
        assert secret not in told

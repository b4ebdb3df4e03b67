"""Every client mistake is a 4xx that names its field, whatever else the request asks for; none reaches the loop."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.malformed import BODIES, CHAT, COMPLETION, SHARED, USER, Row
from tests.engine.random_model import RandomModel
from tests.engine.serving import MODEL, Client, serving
from tests.engine.test_tool_calls import text_tokenizer

ERROR_KEYS = {"message", "type", "param", "code"}
CHAT_PATH, COMPLETION_PATH = "/v1/chat/completions", "/v1/completions"


def test_the_table_is_long_enough_to_mean_something() -> None:
    assert 2 * len(SHARED) + len(CHAT) + len(COMPLETION) + len(BODIES) >= 150
    assert len(SHARED) + len(CHAT) + len(COMPLETION) >= 150


async def check(client: Client, path: str, row: Row, base: dict[str, Any]) -> None:
    status, document, _ = await client.post(path, base | row.fields)
    shown = (path, str(row.fields)[:100], document)
    assert status == 400, shown
    error = document["error"]
    assert error.keys() == ERROR_KEYS, shown
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", row.param, row.code), shown
    assert 10 < len(error["message"]) < 500, shown
    assert "pydantic" not in error["message"], shown


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_every_mistake_in_a_chat_is_a_400_that_names_it(stream: bool) -> None:
    """vllm#12886, sglang#21900, nano-vllm#270, vllm#16529: never a 500, never a started stream."""
    base = {"model": MODEL, "messages": [USER], "stream": stream}
    async with serving(runner=RandomModel(), tokenizer=text_tokenizer()) as client:
        for row in SHARED + CHAT:
            await check(client, CHAT_PATH, row, base)
        assert (await client.chat())[0] == 200
        await client.until_idle()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_every_mistake_in_a_completion_is_a_400_that_names_it(stream: bool) -> None:
    """vllm#7283, vllm#7632, vllm#44042, sglang#28088."""
    base = {"model": MODEL, "prompt": "hello", "stream": stream}
    async with serving(runner=RandomModel(), tokenizer=text_tokenizer()) as client:
        for row in SHARED + COMPLETION:
            await check(client, COMPLETION_PATH, row, base)
        assert (await client.complete(max_tokens=2))[0] == 200
        await client.until_idle()


@pytest.mark.parametrize("path", [CHAT_PATH, COMPLETION_PATH])
async def test_a_body_that_is_no_request_is_a_400(path: str) -> None:
    async with serving() as client:
        for raw in BODIES:
            status, document, _ = await client.post(path, raw)
            assert (status, document["error"]["type"]) == (400, "invalid_request_error"), raw[:40]
            assert document["error"].keys() == ERROR_KEYS
        assert (await client.chat())[0] == 200


async def test_what_a_client_wrote_is_not_repeated_to_it() -> None:
    """A proxy that matches on text would read a status code out of a prompt."""
    secret = "429-rate-limit-secret"
    async with serving() as client:
        for fields in ({"temperature": secret}, {"stop": [secret, ""]}, {"messages": [{"role": secret}]}):
            _, document = await client.chat(**fields)
            assert secret not in document["error"]["message"]


NO_LOGITS: list[tuple[dict[str, Any], str]] = [
    ({"logprobs": True}, "logprobs"),
    ({"guided_regex": "a"}, "guided_regex"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
]


@pytest.mark.parametrize(("fields", "param"), NO_LOGITS, ids=lambda value: str(value)[:20])
async def test_the_simulated_runner_refuses_what_needs_logits(fields: dict[str, Any], param: str) -> None:
    async with serving() as client:
        status, document = await client.chat(**fields)
    assert (status, document["error"]["param"]) == (400, param)

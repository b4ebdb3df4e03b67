"""OpenAI's own client against the engine: what it parses, what it raises, what it retries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from tests.engine.serving import MODEL, Client, serving


@asynccontextmanager
async def sdk(**options: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Client]]:
    async with (
        serving(token="secret", **options) as client,
        openai.AsyncOpenAI(base_url=f"{client.url}/v1", api_key="secret", max_retries=0) as made,
    ):
        yield made, client


MESSAGES: Any = [{"role": "user", "content": "hello"}]


async def test_a_chat_and_its_stream_agree() -> None:
    async with sdk() as (client, _):
        whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6)
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=6, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage == whole.usage
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason == "length"


async def test_completions_and_models() -> None:
    async with sdk() as (client, _):
        reply = await client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=3)
        listed = await client.models.list()
        one = await client.models.retrieve(MODEL)
    assert len(reply.choices) == 2
    assert [model.id for model in listed.data] == [one.id] == [MODEL]


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"max_tokens": 0}, openai.BadRequestError, None),
        ({"max_tokens": 10_000}, openai.BadRequestError, "context_length_exceeded"),
        ({"model": "other"}, openai.NotFoundError, "model_not_found"),
    ],
    ids=["bad field", "too long", "unknown model"],
)
async def test_mistakes_raise_the_sdk_s_errors(
    fields: dict[str, Any], error: type[openai.APIStatusError], code: str | None
) -> None:
    async with sdk() as (client, _):
        body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES} | fields
        with pytest.raises(error) as caught:
            await client.chat.completions.create(**body)
    assert caught.value.code == code
    assert caught.value.type == "invalid_request_error"


async def test_a_wrong_key_is_an_authentication_error() -> None:
    async with sdk() as (client, _):
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()


async def test_a_draining_engine_is_an_error_that_may_be_retried() -> None:
    async with sdk() as (client, inside):
        await inside.post("/drain", b"")
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert caught.value.response.headers["retry-after"] == "1"


async def test_an_error_in_mid_stream_raises() -> None:
    async with sdk(faults=("error-after:2",)) as (client, _):
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=9, stream=True)
        with pytest.raises(openai.APIError, match="simulated fault"):
            async for _ in stream:
                pass

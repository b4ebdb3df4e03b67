"""Tool calls over HTTP, with a template like hermes's and a model that is told what to write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engine.builders import ScriptedRunner
from tests.engine.malformed import HERMES_TEMPLATE
from tests.engine.random_model import RandomModel
from tests.engine.serving import Client, serving

from tidewheel.engine.request import Request
from tidewheel.engine.simulated_text import END_ID, SIMULATED_VOCAB, simulated_tokenizer
from tidewheel.engine.tokenizer import ModelTokenizer
from tidewheel.engine.tools import HERMES, LLAMA3, tool_format

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
NAP = {"type": "function", "function": {"name": "nap", "parameters": {"type": "object", "maxProperties": 0}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 7}}\n</tool_call>'


def text_tokenizer(template: str | None = HERMES_TEMPLATE) -> ModelTokenizer:
    return ModelTokenizer(simulated_tokenizer(), eos_ids=frozenset({END_ID}), chat_template=template)


def says(text: str) -> ScriptedRunner:
    """A model that writes this and ends."""
    ids = [*text_tokenizer().encode_plain(text), END_ID]

    def choose(request: Request) -> int:
        return ids[request.num_output] if not request.is_warm_up else 50

    return ScriptedRunner(num_blocks=256, block_size=16, vocab_size=SIMULATED_VOCAB, choose=choose)


def speaking(runner: ScriptedRunner) -> Any:
    return serving(runner=runner, tokenizer=text_tokenizer(), max_model_len=900)


async def test_a_call_becomes_tool_calls() -> None:
    async with speaking(says("Let me see. " + CALL)) as client:
        _, document = await client.chat(tools=[ADD], max_tokens=200)
    (choice,) = document["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see. "
    assert call["function"] == {"name": "add", "arguments": '{"a": 7}'}
    assert (call["type"], call["id"][:5]) == ("function", "call_")


async def streamed_calls(client: Client, **fields: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    events = (await client.stream(**fields))[:-1]
    calls: list[dict[str, Any]] = []
    for event in events:
        for piece in event["choices"][0]["delta"].get("tool_calls", []):
            if "id" in piece:
                assert piece["index"] == len(calls)
                calls.append({"name": piece["function"]["name"], "arguments": ""})
            calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    return calls, events


async def test_a_stream_of_two_calls_adds_up() -> None:
    async with speaking(says(f"{CALL}\n{CALL}")) as client:
        calls, events = await streamed_calls(client, tools=[ADD], max_tokens=300)
    assert calls == [{"name": "add", "arguments": '{"a": 7}'}] * 2
    assert [e["choices"][0]["finish_reason"] for e in events if e["choices"][0]["finish_reason"]] == ["tool_calls"]
    assert not any(e["choices"][0]["delta"].get("content") for e in events)
    assert sum("tool_calls" in e["choices"][0]["delta"] for e in events) > 4  # as they are written, not at the end


async def test_without_tools_the_same_text_is_text() -> None:
    async with speaking(says(CALL)) as client:
        for fields in ({}, {"tools": [ADD], "tool_choice": "none"}, {"tools": []}):
            _, document = await client.chat(max_tokens=200, **fields)
            (choice,) = document["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")
            assert "tool_calls" not in choice["message"]


async def test_a_reply_without_a_call_is_plain() -> None:
    async with speaking(says("no need")) as client:
        _, document = await client.chat(tools=[ADD], tool_choice="auto", max_tokens=20)
    (choice,) = document["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("no need", "stop")


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"add", "nap"}), ({"type": "function", "function": {"name": "add"}}, {"add"})],
    ids=["required", "named"],
)
@pytest.mark.parametrize("seed", range(3))
async def test_a_call_that_must_be_made_is_made(choice: Any, names: set[str], seed: int) -> None:
    """By a model of random logits: the grammar leaves it no other way."""
    async with speaking(RandomModel()) as client:
        _, document = await client.chat(
            tools=[ADD, NAP], tool_choice=choice, seed=seed, max_tokens=400, parallel_tool_calls=False
        )
    (answer,) = document["choices"]
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] in names
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert answer["finish_reason"] == "tool_calls"


async def test_earlier_calls_and_their_results_are_rendered() -> None:
    async with speaking(says("9")) as client:
        tokenizer = client.service.tokenizer
        called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": "<|end|>"}'}}
        messages = [
            {"role": "user", "content": "add"},
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "content": "9", "tool_call_id": "c1"},
        ]
        status, document, _ = await client.post(
            "/v1/chat/completions",
            {"model": "demo", "messages": messages, "tools": [ADD], "return_token_ids": True, "max_tokens": 5},
        )
    assert status == 200
    ids = document["prompt_token_ids"]
    assert ids.count(END_ID) == 4  # the system's, and one for each message: what people write ends nothing
    assert b'{"a": "<|end|>"}' in b"".join(map(tokenizer.token_bytes, ids))


async def test_a_model_that_knows_no_tools_says_so() -> None:
    async with serving(runner=says("x")) as client:
        status, document = await client.chat(tools=[ADD])
    assert (status, document["error"]["code"]) == (400, "tools_not_supported")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (HERMES_TEMPLATE, HERMES),
        ('{% if tools %}respond with {"name": function name, "parameters": ...}{% endif %}ipython', LLAMA3),
        ("{{ messages }}", None),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", None),
        (None, None),
    ],
    ids=["hermes", "llama3", "no tools", "another way", "no template"],
)
def test_the_family_is_read_from_the_template(template: str | None, expected: Any) -> None:
    assert tool_format(template) is expected

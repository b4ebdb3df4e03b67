"""What of a request for a response is understood, and how the rest is refused."""

from typing import Any

import orjson
import pytest

from tidewheel.gateway.errors import InvalidRequestError
from tidewheel.gateway.requests import Request
from tidewheel.gateway.responses.asking import Asking, read_asking


def asking(**fields: Any) -> Asking:
    body = orjson.dumps({"model": "chat", "input": "hi", **fields})
    return read_asking(Request("POST", "/v1/responses", "", {}, body, keep_alive=True, chunked_replies=True))


def chat(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(asking(**fields).chat.body)
    return found


def test_instructions_and_turns_become_messages_in_their_order() -> None:
    turns = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"role": "user", "content": "c"},
    ]
    assert chat(instructions="first", input=turns)["messages"] == [
        {"role": "system", "content": "first"},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]


def test_it_is_produced_as_a_stream_whatever_the_client_wants_to_see() -> None:
    sent = chat(max_output_tokens=7, temperature=0, user="u", prompt_cache_key="k")
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}
    assert (sent["max_tokens"], sent["temperature"], sent["user"], sent["prompt_cache_key"]) == (7, 0, "u", "k")


def test_a_schema_for_the_text_becomes_a_response_format() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    assert chat(text={"format": form})["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    assert "response_format" not in chat(text={"format": {"type": "text"}})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"truncation": "auto"}, "truncation"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"colour": "blue"}, "colour"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call_output"}]}, "input[0]"),
        ({"input": [{"role": "narrator", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": 1}]}, "input[0].content"),
        ({"stream": "yes"}, "stream"),
        ({"background": 1}, "background"),
        ({"background": True, "store": False}, "store"),
        ({"instructions": 1}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": True}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": "json"}, "text.format"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_served_is_refused_by_name_with_a_way_out(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        asking(**fields)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert param.split("[", maxsplit=1)[0] in caught.value.message


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    nothing = {"tools": [], "tool_choice": "auto", "include": [], "truncation": "disabled", "service_tier": "auto"}
    assert asking(**nothing, previous_response_id=None, reasoning=None, parallel_tool_calls=False).echo["tools"] == []

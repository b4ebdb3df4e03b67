"""Requests that are wrong, and what each must be told. Also the seeds of the parser's fuzzing."""

from __future__ import annotations

from typing import Any, NamedTuple

HIGH = 10**6  # above every token id of the test's vocabulary
HERMES_TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    " answer in <tool_call><|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>"
    "{{ call.function.arguments | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}<|assistant|>"
)
USER = {"role": "user", "content": "hello"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class Row(NamedTuple):
    fields: dict[str, Any]
    param: str | None
    code: str | None = None


def _schema(schema: Any, name: str = "x") -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}}


def _message(**fields: Any) -> dict[str, Any]:
    return {"messages": [fields]}


def _part(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [fields]}]}


def _tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function}]}


def _called(**call: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]}


# Fields of both endpoints.
SHARED = [
    Row({"model": None}, "model"),
    Row({"model": 5}, "model"),
    Row({"model": ["demo"]}, "model"),
    Row({"stream": "yes"}, "stream"),
    Row({"stream": 1}, "stream"),
    Row({"stream_options": "usage"}, "stream_options"),
    Row({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    Row({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    Row({"max_tokens": 0}, "max_tokens"),
    Row({"max_tokens": -1}, "max_tokens"),
    Row({"max_tokens": 1.5}, "max_tokens"),
    Row({"max_tokens": "5"}, "max_tokens"),
    Row({"max_tokens": True}, "max_tokens"),
    Row({"max_tokens": [1]}, "max_tokens"),
    Row({"min_tokens": -1}, "min_tokens"),
    Row({"min_tokens": "1"}, "min_tokens"),
    Row({"n": 0}, "n"),
    Row({"n": 17}, "n"),
    Row({"n": 1.5}, "n"),
    Row({"n": "2"}, "n"),
    Row({"temperature": -0.1}, "temperature"),
    Row({"temperature": 2.1}, "temperature"),
    Row({"temperature": "hot"}, "temperature"),
    Row({"temperature": True}, "temperature"),
    Row({"temperature": [1]}, "temperature"),
    Row({"top_p": 0}, "top_p"),
    Row({"top_p": 1.0001}, "top_p"),
    Row({"top_p": -1}, "top_p"),
    Row({"top_p": "1"}, "top_p"),
    Row({"top_k": -2}, "top_k"),
    Row({"top_k": 1.5}, "top_k"),
    Row({"top_k": "all"}, "top_k"),
    Row({"min_p": 1.1}, "min_p"),
    Row({"min_p": -0.1}, "min_p"),
    Row({"presence_penalty": 3}, "presence_penalty"),
    Row({"presence_penalty": "x"}, "presence_penalty"),
    Row({"frequency_penalty": -3}, "frequency_penalty"),
    Row({"frequency_penalty": {}}, "frequency_penalty"),
    Row({"repetition_penalty": 0}, "repetition_penalty"),
    Row({"repetition_penalty": -1}, "repetition_penalty"),
    Row({"repetition_penalty": 11}, "repetition_penalty"),
    Row({"seed": 1 << 63}, "seed"),
    Row({"seed": -(1 << 63) - 1}, "seed"),
    Row({"seed": 1.5}, "seed"),
    Row({"seed": "s"}, "seed"),
    Row({"stop": ""}, "stop"),
    Row({"stop": ["a", ""]}, "stop"),
    Row({"stop": ["a"] * 5}, "stop"),
    Row({"stop": 5}, "stop"),
    Row({"stop": [5]}, "stop.0"),
    Row({"stop": {"a": 1}}, "stop"),
    Row({"stop_token_ids": [-1]}, "stop_token_ids.0"),
    Row({"stop_token_ids": [HIGH]}, "stop_token_ids"),
    Row({"stop_token_ids": [1 << 40]}, "stop_token_ids.0"),
    Row({"stop_token_ids": ["a"]}, "stop_token_ids.0"),
    Row({"stop_token_ids": list(range(65))}, "stop_token_ids"),
    Row({"stop_token_ids": 3}, "stop_token_ids"),
    Row({"ignore_eos": "no"}, "ignore_eos"),
    Row({"logit_bias": {"-1": 1}}, "logit_bias"),
    Row({"logit_bias": {"x": 1}}, "logit_bias"),
    Row({"logit_bias": {"": 1}}, "logit_bias"),
    Row({"logit_bias": {"1.5": 1}}, "logit_bias"),
    Row({"logit_bias": {"٣": 1}}, "logit_bias"),
    Row({"logit_bias": {str(HIGH): 1}}, "logit_bias"),
    Row({"logit_bias": {"5": 101}}, "logit_bias.5"),
    Row({"logit_bias": {"5": "a"}}, "logit_bias.5"),
    Row({"logit_bias": [1]}, "logit_bias"),
    Row({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    Row({"return_token_ids": 1}, "return_token_ids"),
    # Known, and not built.
    Row({"audio": {}}, "audio"),
    Row({"best_of": 2}, "best_of"),
    Row({"functions": [{}]}, "functions"),
    Row({"function_call": "auto"}, "function_call"),
    Row({"logprob_token_ids": [-1]}, "logprob_token_ids"),
    Row({"modalities": ["audio"]}, "modalities"),
    Row({"prediction": {}}, "prediction"),
    Row({"prompt_logprobs": 1}, "prompt_logprobs"),
    Row({"reasoning_effort": "high"}, "reasoning_effort"),
    Row({"suffix": "x"}, "suffix"),
    Row({"use_beam_search": True}, "use_beam_search"),
    Row({"web_search_options": {}}, "web_search_options"),
    Row({"bad_words": ["x"]}, "bad_words"),
    Row({"allowed_token_ids": [1]}, "allowed_token_ids"),
    Row({"skip_special_tokens": False}, "skip_special_tokens"),
    Row({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
    Row({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    # Structures.
    Row({"response_format": "json"}, "response_format"),
    Row({"response_format": {}}, "response_format.type"),
    Row({"response_format": {"type": "xml"}}, "response_format.type"),
    Row({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    Row({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
    Row(_schema({}, name="a b"), "response_format.json_schema.name"),
    Row(_schema([]), "response_format.json_schema.schema"),
    Row(_schema({"type": "frob"}), "response_format.json_schema.schema", "invalid_grammar"),
    Row(_schema({"$ref": "#/nowhere"}), "response_format.json_schema.schema", "invalid_grammar"),
    Row({"structured_outputs": []}, "structured_outputs"),
    Row({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    Row({"structured_outputs": {"regex": "["}}, "structured_outputs.regex", "invalid_grammar"),
    Row({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
    Row({"structured_outputs": {"json_object": True, "regex": "a"}}, "structured_outputs.json_object"),
    Row({"guided_regex": "("}, "guided_regex", "invalid_grammar"),
    Row({"guided_regex": "(?=a)b"}, "guided_regex", "invalid_grammar"),
    Row({"guided_regex": "(" * 5000}, "guided_regex", "invalid_grammar"),
    Row({"guided_regex": "a" * 300_000}, "guided_regex", "invalid_grammar"),
    Row({"guided_regex": 5}, "guided_regex"),
    Row({"guided_regex": "a", "min_tokens": 3}, "min_tokens"),
    Row({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    Row({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    Row({"guided_grammar": "start: missing"}, "guided_grammar", "invalid_grammar"),
    Row({"guided_grammar": "::::"}, "guided_grammar", "invalid_grammar"),
    Row({"guided_grammar": ""}, "guided_grammar", "invalid_grammar"),
    Row({"guided_json": "{"}, "guided_json", "invalid_grammar"),
    Row({"guided_json": "[]"}, "guided_json", "invalid_grammar"),
    Row({"guided_json": 5}, "guided_json"),
    Row({"guided_json": {"type": "string", "pattern": "("}}, "guided_json", "invalid_grammar"),
    Row({"guided_json": {"unevaluatedItems": {"not": {}}}}, "guided_json", "invalid_grammar"),
    Row({"guided_choice": []}, "guided_choice"),
    Row({"guided_choice": [""]}, "guided_choice.0"),
    Row({"guided_choice": [5]}, "guided_choice.0"),
    Row({"guided_choice": "ab"}, "guided_choice"),
    Row({"guided_choice": ["a"] * 2000}, "guided_choice"),
]

CHAT = [
    Row({"messages": []}, "messages"),
    Row({"messages": "hi"}, "messages"),
    Row({"messages": None}, "messages"),
    Row({"messages": {"role": "user"}}, "messages"),
    Row({"messages": ["hi"]}, "messages.0"),
    Row(_message(content="x"), "messages.0.role"),
    Row(_message(role="robot", content="x"), "messages.0.role"),
    Row(_message(role=5, content="x"), "messages.0.role"),
    Row(_message(role="user"), "messages.0"),
    Row(_message(role="user", content=None), "messages.0"),
    Row(_message(role="system", content=None), "messages.0"),
    Row(_message(role="user", content=5), "messages.0.content"),
    Row(_message(role="user", content={"text": "x"}), "messages.0.content"),
    Row(_part(type="image_url", image_url={"url": "x"}), "messages.0.content.0.type"),
    Row(_part(type="input_audio"), "messages.0.content.0.type"),
    Row(_part(type="text"), "messages.0.content.0.text"),
    Row(_part(type="text", text=5), "messages.0.content.0.text"),
    Row(_part(text="x"), "messages.0.content.0.type"),
    Row(_called(), "messages.1.tool_calls.0.function"),
    Row(_called(type="web"), "messages.1.tool_calls.0.type"),
    Row(_called(function={"name": "f"}), "messages.1.tool_calls.0.function.arguments"),
    Row(_called(function={"name": "f", "arguments": {}}), "messages.1.tool_calls.0.function.arguments"),
    Row(_called(function={"name": "f", "arguments": "{"}), "messages"),
    Row({"max_completion_tokens": 0}, "max_completion_tokens"),
    Row({"max_completion_tokens": "5"}, "max_completion_tokens"),
    Row({"max_completion_tokens": HIGH}, "messages", "context_length_exceeded"),
    Row({"logprobs": 3}, "logprobs"),
    Row({"logprobs": "yes"}, "logprobs"),
    Row({"top_logprobs": 3}, "top_logprobs"),
    Row({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    Row({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    Row({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    Row({"echo": True}, "echo"),
    Row({"tools": "add"}, "tools"),
    Row({"tools": [5]}, "tools.0"),
    Row({"tools": [{"type": "function"}]}, "tools.0.function"),
    Row({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    Row(_tool(), "tools.0.function.name"),
    Row(_tool(name=""), "tools.0.function.name"),
    Row(_tool(name="a b"), "tools.0.function.name"),
    Row(_tool(name="f", parameters=[]), "tools.0.function.parameters"),
    Row(_tool(name="f", description=5), "tools.0.function.description"),
    Row({"tools": [ADD] * 129}, "tools"),
    Row({"tool_choice": "auto"}, "tool_choice"),
    Row({"tools": [ADD], "tool_choice": "sometimes"}, "tool_choice"),
    Row({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    Row(
        {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "nap"}}},
        "tool_choice.function.name",
    ),
    Row({"tools": [ADD], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    Row({"tools": [ADD], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
    Row({"tools": [ADD], "tool_choice": "required", "min_tokens": 5}, "min_tokens"),
    Row({**_tool(name="f", parameters={"type": "frob"}), "tool_choice": "required"}, "tools", "invalid_grammar"),
]

COMPLETION = [
    Row({"prompt": None}, "prompt"),
    Row({"prompt": ""}, "prompt"),
    Row({"prompt": []}, "prompt"),
    Row({"prompt": [""]}, "prompt"),
    Row({"prompt": [[]]}, "prompt"),
    Row({"prompt": [-1]}, "prompt.0"),
    Row({"prompt": [1 << 40]}, "prompt.0"),
    Row({"prompt": [HIGH]}, "prompt"),
    Row({"prompt": [[HIGH]]}, "prompt"),
    Row({"prompt": [5] * 600}, "prompt", "context_length_exceeded"),
    Row({"max_tokens": HIGH}, "prompt", "context_length_exceeded"),
    Row({"logprobs": -1}, "logprobs"),
    Row({"logprobs": 21}, "logprobs"),
    Row({"logprobs": True}, "logprobs"),
    Row({"echo": "yes"}, "echo"),
    Row({"echo": True, "logprobs": 1}, "echo"),
    Row({"tools": [ADD]}, "tools"),
    Row({"tool_choice": "auto"}, "tool_choice"),
    Row({"prompt": ["a"] * 4097}, "prompt"),
]

BODIES = [
    b"", b"{", b"[]", b"null", b'"x"', b"5", b"\xff\xfe", b"{}", b'{"model": NaN}', b'{"model": "demo"}', b"[" * 2000,
    b'{"a":' * 2000, b"\x00", b'{"model": "demo", "model": 5}', b"{'model': 'demo'}", b'{"model": "\\ud800"}',
    b"model=demo",
]  # fmt: skip

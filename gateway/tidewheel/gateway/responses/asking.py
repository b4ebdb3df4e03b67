"""From a request for a response to the request for chat that produces it. Pure.

What this API knows and we do not is refused by name, with what to do instead; a field that is null counts as absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from tidewheel.gateway.errors import InvalidRequestError
from tidewheel.gateway.inference import parse_object
from tidewheel.gateway.requests import Request

CHAT_PATH: Final = "/v1/chat/completions"
_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text"})
_SAMPLING: Final = ("temperature", "top_p")
_CHAT_INSTEAD: Final = "send the request to /v1/chat/completions"
_WAY_OUT: Final = {
    "conversation": "send the earlier turns in 'input'",
    "previous_response_id": "send the earlier turns in 'input'",
    "prompt": "send the text of the prompt in 'input'",
    "tools": _CHAT_INSTEAD,
    "tool_choice": _CHAT_INSTEAD,
    "max_tool_calls": _CHAT_INSTEAD,
    "top_logprobs": _CHAT_INSTEAD,
    "include": "leave it out",
    "reasoning": "leave it out",
}
_INERT: Final[Mapping[str, tuple[object, ...]]] = {  # values that ask for nothing
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "include": ([],),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "service_tier": ("auto", "default"),
    "parallel_tool_calls": (True, False),
    "stream_options": ({}, {"include_obfuscation": False}, {"include_obfuscation": True}),
}
_STRINGS: Final = ("instructions", "user", "prompt_cache_key", "safety_identifier", "request_id")
_READ: Final = frozenset(
    {"model", "input", "stream", "background", "store", "metadata", "max_output_tokens", "text", *_SAMPLING, *_STRINGS}
)


@dataclass(frozen=True, slots=True)
class Asking:
    """``chat`` produces the response; ``echo`` is what the response object repeats of its request."""

    original: Request
    chat: Request
    fields: dict[str, Any]
    echo: dict[str, Any]
    stream: bool
    background: bool
    stored: bool


def read_asking(request: Request) -> Asking:
    """Raises InvalidRequestError."""
    fields = {name: value for name, value in parse_object(request).items() if value is not None}
    for name, value in fields.items():
        if name not in _READ:
            _require_inert(name, value)
    for name in _STRINGS:
        _require(fields, name, str)
    for name in ("stream", "background", "store"):
        _require(fields, name, bool)
    _require_numbers(fields)
    background, stored = fields.get("background", False), fields.get("store", True)
    if background and not stored:
        message = "A response in the background must be stored, to be fetched later; leave 'store' out."
        raise InvalidRequestError(message, code="invalid_value", param="store")
    chat = orjson.dumps(_chat_fields(fields))
    return Asking(
        original=request,
        chat=replace(request, path=CHAT_PATH, body=chat),
        fields=fields,
        echo=_echo(fields),
        stream=fields.get("stream", False),
        background=background,
        stored=stored,
    )


def _chat_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The order of fields is fixed: prompts that begin alike give bodies that begin alike."""
    chat: dict[str, Any] = {"model": fields.get("model"), "messages": _messages(fields)}
    chat |= {name: fields[name] for name in (*_SAMPLING, "user", "prompt_cache_key") if name in fields}
    if "max_output_tokens" in fields:
        chat["max_tokens"] = fields["max_output_tokens"]
    form = _text_format(fields)
    if form is not None:
        chat["response_format"] = form
    return {**chat, "stream": True, "stream_options": {"include_usage": True}}


def _messages(fields: dict[str, Any]) -> list[dict[str, str]]:
    said = fields.get("input")
    messages = [{"role": "system", "content": fields["instructions"]}] if "instructions" in fields else []
    if isinstance(said, str) and said:
        return [*messages, {"role": "user", "content": said}]
    if not isinstance(said, list) or not said:
        message = "'input' must be a text or a list of messages."
        raise InvalidRequestError(message, code="invalid_type", param="input")
    return [*messages, *(_message(number, item) for number, item in enumerate(said))]


def _message(number: int, item: Any) -> dict[str, str]:
    name = f"input[{number}]"
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        message = f"'{name}' must be a message; other kinds of items are not supported: {_CHAT_INSTEAD}."
        raise InvalidRequestError(message, code="unsupported_value", param=name)
    role = item.get("role")
    if role not in _ROLES:
        message = f"'{name}.role' must be one of {', '.join(_ROLES)}."
        raise InvalidRequestError(message, code="invalid_value", param=f"{name}.role")
    return {"role": _ROLES[role], "content": _content(f"{name}.content", item.get("content"))}


def _content(name: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        message = f"'{name}' must be a text or a list of texts."
        raise InvalidRequestError(message, code="invalid_type", param=name)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            message = f"'{name}[{number}]' must be a text ('input_text' with 'text'); models here read text only."
            raise InvalidRequestError(message, code="unsupported_value", param=f"{name}[{number}]")
        texts.append(part["text"])
    return "".join(texts)


def _text_format(fields: dict[str, Any]) -> dict[str, Any] | None:
    text = fields.get("text", {})
    form = text.get("format") or {"type": "text"} if isinstance(text, dict) else None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "json_schema" and isinstance(form, dict) and isinstance(form.get("schema"), dict):
        schema = {name: form[name] for name in ("name", "schema", "strict") if form.get(name) is not None}
        return {"type": "json_schema", "json_schema": schema}
    message = "'text.format' must be of type 'text', 'json_object', or 'json_schema' with a 'schema'."
    raise InvalidRequestError(message, code="invalid_value", param="text.format")


def _echo(fields: dict[str, Any]) -> dict[str, Any]:
    text = fields.get("text", {})
    return {
        "background": fields.get("background", False),
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "max_tool_calls": None,
        "metadata": _metadata(fields),
        "model": fields.get("model"),
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": fields.get("safety_identifier"),
        "service_tier": "default",
        "store": fields.get("store", True),
        "temperature": fields.get("temperature", 1.0),
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity", "medium")},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": [],
        "top_logprobs": 0,
        "top_p": fields.get("top_p", 1.0),
        "truncation": "disabled",
        "user": fields.get("user"),
    }


def _metadata(fields: dict[str, Any]) -> dict[str, str]:
    metadata = fields.get("metadata", {})
    if (
        not isinstance(metadata, dict)
        or len(metadata) > 16
        or any(not isinstance(value, str) or len(value) > 512 or len(name) > 64 for name, value in metadata.items())
    ):
        message = "'metadata' holds at most 16 texts of at most 512 characters, under names of at most 64."
        raise InvalidRequestError(message, code="invalid_value", param="metadata")
    return metadata


def _require_inert(name: str, value: object) -> None:
    known = _INERT.get(name, ())
    if any(value == inert and type(value) is type(inert) for inert in known):
        return
    way_out = _WAY_OUT.get(name, f"send {' or '.join(map(_shown, known))}" if known else "leave it out")
    shown = name[:60] if name.isprintable() else "this field"
    message = f"'{shown}' is not supported by /v1/responses here; {way_out}."
    raise InvalidRequestError(message, code="unsupported_parameter", param=shown)


def _shown(value: object) -> str:
    return orjson.dumps(value).decode()


def _require_numbers(fields: dict[str, Any]) -> None:
    most = fields.get("max_output_tokens", 1)
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        message = "'max_output_tokens' must be a whole number of at least 1."
        raise InvalidRequestError(message, code="invalid_value", param="max_output_tokens")
    for name in _SAMPLING:
        value = fields.get(name, 1.0)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidRequestError(f"'{name}' must be a number.", code="invalid_type", param=name)


def _require(fields: dict[str, Any], name: str, kind: type) -> None:
    if name in fields and not isinstance(fields[name], kind):
        words = {str: "a string", bool: "true or false"}[kind]
        raise InvalidRequestError(f"'{name}' must be {words}.", code="invalid_type", param=name)

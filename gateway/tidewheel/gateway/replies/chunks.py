"""Chunks of OpenAI's streams at byte level: what of an engine's event the client is meant to see.

Engines are asked for token ids, which clients have mostly not asked for. They are cut out of the bytes, so that the
rest stays as the engine wrote it: in JSON the text ``,"token_ids":[`` cannot occur inside a string, where its quotes
would be escaped.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import orjson

from tidewheel.gateway.sse import event_data, event_name

IDS: Final = b',"token_ids":['
_UNASKED: Final = re.compile(rb',"(?:prompt_)?token_ids":\[[0-9,]*\]|,"text_held":true')
_COMMON: Final = ("id", "object", "created", "model", "system_fingerprint")


def plain_event(event: bytes, data: bytes) -> bytes:
    """The event with nothing but its name and its data, LF only; most come in that form already."""
    if event.startswith(b"data: ") and len(event) == len(data) + 8:
        return event
    name = event_name(event)
    lines = [b"event: " + name] if name else []
    lines += [b"data: " + line for line in data.split(b"\n")]
    return b"\n".join(lines) + b"\n\n"


def without_token_ids(event: bytes) -> bytes:
    """The event without what only the gateway asked for."""
    cut = _UNASKED.sub(b"", event)
    if b'token_ids"' not in cut:
        return cut
    # Written in another way than ours, or words of the model that look like it.
    parsed = orjson.loads(event_data(event) or b"{}")
    for part in (parsed, *_choices(parsed)):
        for name in ("token_ids", "prompt_token_ids", "text_held"):
            part.pop(name, None)
    said = event_name(event)
    return (b"event: %b\n" % said if said else b"") + b"data: %b\n\n" % orjson.dumps(parsed)


def text_choice(parsed: dict[str, Any]) -> dict[str, Any] | None:
    """The one choice of a chunk that carries text and ends nothing, as nearly all chunks do; None for any other."""
    choices = parsed.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or parsed.get("usage") or parsed.get("error"):
        return None
    choice = choices[0]
    if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
        return None
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return choice if text and isinstance(text, str) else None


def token_ids(parsed: dict[str, Any]) -> Sequence[int]:
    """The ids of the tokens that a chunk stands for; none if it does not tell."""
    choices = parsed.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return ()
    return ids_of(choices[0])


def ids_of(choice: dict[str, Any]) -> Sequence[int]:
    """The ids of the tokens of one choice; none if it does not tell."""
    ids = choice.get("token_ids")
    return ids if isinstance(ids, list) and all(type(token) is int and 0 <= token < 1 << 32 for token in ids) else ()


def prompt_token_ids(parsed: dict[str, Any]) -> list[int] | None:
    """The ids of the prompt, which the first chunk carries: in chat beside its choices, else inside the first one."""
    for part in (parsed, *_choices(parsed)):
        ids = part.get("prompt_token_ids")
        if isinstance(ids, list) and all(type(token) is int and 0 <= token < 1 << 32 for token in ids):
            return ids
    return None


def is_text_held(parsed: dict[str, Any]) -> bool:
    """Whether the engine still holds back text of the tokens so far."""
    return any(choice.get("text_held") is True for choice in _choices(parsed))


def finish_reason(parsed: dict[str, Any]) -> str | None:
    """Why the choice ended, if this chunk ends it."""
    for choice in _choices(parsed):
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            return reason
    return None


def shows_nothing(parsed: dict[str, Any]) -> bool:
    """Whether a chunk exists only to carry token ids."""
    choices = _choices(parsed)
    if len(choices) != 1 or parsed.get("usage") or not choices[0].get("token_ids"):
        return False
    choice = choices[0]
    delta = choice.get("delta")
    text = delta == {"content": ""} if isinstance(delta, dict) else choice.get("text") == ""
    return text and not choice.get("finish_reason") and not choice.get("logprobs")


def common_fields(parsed: dict[str, Any]) -> dict[str, Any]:
    """What all chunks of a reply share."""
    return {name: parsed[name] for name in _COMMON if name in parsed}


def _choices(parsed: dict[str, Any]) -> list[dict[str, Any]]:
    choices = parsed.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []

"""What can be told of one answer without another model: refused, looping, of the right shape, like another answer."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

_REFUSALS: Final = re.compile(
    r"^\W*(i'?m sorry|i am sorry|sorry,|i can(no|')t (help|assist|provide|do|answer|comply)|"
    r"i('m| am) (not able|unable)|"
    r"i (won't|will not|must decline)|as an ai\b|unfortunately, i can)",
    re.IGNORECASE,
)
_LONGEST_PERIOD: Final = 24
_REPEATS: Final = 4
_LOOP_WORDS: Final = 12
_COMPARED_WORDS: Final = 512
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def is_refusal(text: str) -> bool:
    """It begins as refusals begin, or says nothing at all."""
    return not text.strip() or _REFUSALS.search(text.strip()[:200]) is not None


def is_loop(text: str) -> bool:
    """It ends in one phrase over and over: at least four times, and a dozen words of it."""
    words = text.split()
    return any(_repeats(words, period) for period in range(1, min(_LONGEST_PERIOD, len(words) // _REPEATS) + 1))


def agreement(text: str, other: str) -> float:
    """1 where both answers are the same, 0 where no word is shared in order (Ratcliff and Obershelp, on words)."""
    mine, theirs = text.split()[:_COMPARED_WORDS], other.split()[:_COMPARED_WORDS]
    if not mine and not theirs:
        return 1.0
    return SequenceMatcher(None, mine, theirs, autojunk=False).ratio()


def has_shape(text: str, schema: Mapping[str, Any]) -> bool:
    """The answer is JSON of that shape: type, enum, required, properties, items of JSON Schema; a fence is allowed."""
    body = text.strip()
    if fenced := re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", body, re.DOTALL):
        body = fenced.group(1)
    try:
        return _matches(json.loads(body), schema)
    except ValueError:
        return False


def _repeats(words: Sequence[str], period: int) -> bool:
    times = max(_REPEATS, -(-_LOOP_WORDS // period))
    tail = words[-period * times :]
    return len(tail) == period * times and all(tail[place] == tail[place % period] for place in range(len(tail)))


def _matches(value: Any, schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", ())
    allowed = [kinds] if isinstance(kinds, str) else list(kinds)
    if allowed and not any(_is_kind(value, kind) for kind in allowed):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, dict):
        parts = schema.get("properties", {})
        return all(name in value for name in schema.get("required", ())) and all(
            _matches(part, parts[name]) for name, part in value.items() if name in parts
        )
    if isinstance(value, list) and "items" in schema:
        return all(_matches(part, schema["items"]) for part in value)
    return True


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES.get(kind, ()))

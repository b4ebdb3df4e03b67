"""Shadow prompts: what is asked of both versions, greedily, before the new one gets any user.

A set is JSON lines, one prompt a line: ``{"name", "messages" | "prompt", "schema"?}``. ``schema`` says that the answer
must be JSON of that shape.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidewheel.rollout.errors import SettingsError

MOST_PROMPTS: Final = 200
_FIELDS: Final = frozenset({"name", "prompt", "messages", "schema"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question."""

    name: str
    messages: Sequence[Mapping[str, str]]
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a version said. ``error``: why it said nothing; ``finish_reason`` as the engine named it."""

    text: str = ""
    finish_reason: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """One prompt with the answers of both versions."""

    prompt: Prompt
    base: Reply
    canary: Reply


def prompts_from_lines(text: str) -> tuple[Prompt, ...]:
    """Raises SettingsError, which names the line and the way out."""
    found = tuple(_prompt(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip())
    if not found:
        raise SettingsError("quality: the prompt set is empty; give one JSON object per line")
    if len(found) > MOST_PROMPTS:
        raise SettingsError(f"quality: {len(found)} prompts; at most {MOST_PROMPTS} are asked")
    names = [prompt.name for prompt in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SettingsError(f"quality: prompts need names of their own; twice: {', '.join(twice)}")
    return found


def _prompt(number: int, line: str) -> Prompt:
    where = f"quality: line {number} of the prompt set"
    try:
        given = json.loads(line)
    except ValueError as error:
        raise SettingsError(f"{where} is no JSON: {error}") from error
    if not isinstance(given, dict) or (unknown := given.keys() - _FIELDS):
        raise SettingsError(
            f"{where}: {sorted(unknown) if isinstance(given, dict) else 'no object'}; use {sorted(_FIELDS)}"
        )
    if ("prompt" in given) == ("messages" in given):
        raise SettingsError(f"{where}: say either prompt or messages")
    messages = given.get("messages") or [{"role": "user", "content": given["prompt"]}]
    if not all(isinstance(message, dict) and {"role", "content"} <= message.keys() for message in messages):
        raise SettingsError(f"{where}: each message has a role and a content")
    return Prompt(name=str(given.get("name", f"line-{number}")), messages=tuple(messages), schema=given.get("schema"))

"""Plans how another replica carries on with a reply whose replica is lost. Pure.

The new replica gets the prompt and the tokens so far as ids, and writes only what is missing. What was shown stays as
it was. Where that would not be the same reply (sampling that must be reproduced, a grammar's state, several choices),
the plan refuses and says why: an honest end beats a quiet change.
"""

from dataclasses import dataclass
from typing import Any, Final

from tidewheel.gateway.replies.continued import Form
from tidewheel.gateway.replies.tokenlog import TokenLog

COMPLETIONS_PATH: Final = "/v1/completions"
_COPIED: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
)
_OUTPUT_PENALTIES: Final = ("presence_penalty", "frequency_penalty")
_GRAMMARS: Final = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a runtime's completions route can do. ``tells_held_text``: chunks say when text is still held back.
    ``counts_emitted``: it takes ``emitted_tokens``, the tail of the prompt that penalties count as output."""

    returns_token_ids: bool = True
    tells_held_text: bool = False
    counts_emitted: bool = False
    default_completion_tokens: int | None = None  # what it writes to plain text when nobody says how much


RUNTIMES: Final = {
    "tidewheel": Capabilities(tells_held_text=True, counts_emitted=True),
    "vllm": Capabilities(default_completion_tokens=16),
    "custom": Capabilities(returns_token_ids=False),
}


@dataclass(frozen=True, slots=True)
class Continuation:
    """The request that carries on; or, when ``fields`` is None, nothing is missing but the end."""

    fields: dict[str, Any] | None
    form: Form
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a reply cannot be continued; completes the sentence "it cannot be continued elsewhere, because"."""

    reason: str


def form_of(path: str) -> Form:
    """Chat or plain text."""
    return "text" if path == COMPLETIONS_PATH else "chat"


def plan_continuation(
    fields: dict[str, Any], log: TokenLog, *, path: str, model: str, max_model_len: int, runtime: Capabilities
) -> Continuation | Refusal:
    """From the client's request and what the log has."""
    if log.finished:
        return Continuation(None, form_of(path), log.settled)
    reason = refusal_reason(fields, runtime)
    if reason is None and log.prompt_ids is None:
        reason = "its engine does not tell the token ids of the prompt"
    if reason is not None:
        return Refusal(reason)
    assert log.prompt_ids is not None
    kept = log.settled
    most = max_tokens(fields)
    if most is None and path == COMPLETIONS_PATH:
        most = runtime.default_completion_tokens
    room = max_model_len - len(log.prompt_ids)
    left = (room if most is None else min(most, room)) - kept
    if left <= 0:
        return Refusal("all tokens it may have are shown, and its end is not")
    body: dict[str, Any] = {
        "model": model,
        "prompt": [*log.prompt_ids, *log.token_ids[:kept]],
        "max_tokens": left,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    body |= {name: fields[name] for name in _COPIED if fields.get(name) is not None}
    minimum = fields.get("min_tokens") or 0
    if minimum > kept:
        body["min_tokens"] = minimum - kept
    if runtime.counts_emitted:
        body["emitted_tokens"] = kept
        body |= {name: fields[name] for name in _OUTPUT_PENALTIES if fields.get(name)}
    return Continuation(body, form_of(path), kept)


def max_tokens(fields: dict[str, Any]) -> int | None:
    """The most tokens that the client wants; None when it does not say."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.get(name)
        if isinstance(value, int):
            return value
    return None


def refusal_reason(fields: dict[str, Any], runtime: Capabilities) -> str | None:
    """What of a request makes a continuation another reply; the first reason that holds."""
    prompt = fields.get("prompt")
    reasons = {
        "its engine does not tell token ids": not runtime.returns_token_ids,
        "it has several choices": (fields.get("n") or 1) != 1 or (fields.get("best_of") or 1) != 1,
        "its sampling is seeded, and another replica would draw other tokens": (
            fields.get("seed") is not None and fields.get("temperature") != 0
        ),
        "log probabilities were asked for": (
            fields.get("logprobs") not in (None, False) or fields.get("prompt_logprobs") is not None
        ),
        "its output follows a schema": (
            fields.get("response_format") not in (None, {"type": "text"}) or any(fields.get(name) for name in _GRAMMARS)
        ),
        "it may call tools": bool(fields.get("tools")) and fields.get("tool_choice") != "none",
        "its prompt is part of the reply": any(fields.get(name) for name in ("echo", "suffix", "prompt_embeds")),
        "it has several prompts": (
            isinstance(prompt, list) and len(prompt) > 1 and any(not isinstance(part, int) for part in prompt)
        ),
        "penalties on its own words are in force": (
            not runtime.counts_emitted and any(fields.get(name) for name in _OUTPUT_PENALTIES)
        ),
        "text may be held back for its stop strings": not runtime.tells_held_text and bool(fields.get("stop")),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)

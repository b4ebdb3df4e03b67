"""How many tokens a request may cost, before anybody has counted them.

A byte-level tokenizer makes at most one token of a byte, and text that people write far fewer. The estimate is the
body's bytes times the highest ratio that the version's replies reported lately, which fades slowly; settling corrects
it by the count that the engine reports. Tokenising each prompt here would cost more than everything else that a gateway
does for a request (220 KB: tens of milliseconds on the event loop).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidewheel.gateway.errors import InvalidRequestError

_PRIOR_RATIO: Final = 0.4
_TEMPLATE_TOKENS: Final = 16
_FADE: Final = 0.998
_LEAST_BYTES: Final = 200
_MOST_CHOICES: Final = 128


@dataclass(slots=True)
class Learnt:
    """What a version's replies taught. ``ratio`` in tokens per byte of the body, ``output`` tokens of a mean reply."""

    ratio: float = _PRIOR_RATIO
    output: float = 256.0
    replies: int = 0

    def prompt_tokens(self, body_bytes: int) -> int:
        """Upper estimate."""
        return min(body_bytes, round(body_bytes * self.ratio) + _TEMPLATE_TOKENS)

    def learn(self, *, body_bytes: int, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """A reply has ended."""
        if prompt_tokens and body_bytes >= _LEAST_BYTES:
            seen = min(1.0, prompt_tokens / body_bytes)
            self.ratio = max(seen, seen + (self.ratio - seen) * _FADE)
        if output_tokens is not None:
            self.replies += 1
            weight = max(0.02, 1.0 / self.replies)
            self.output += weight * (output_tokens - self.output)


@dataclass(frozen=True, slots=True)
class Cost:
    """``prompt`` and ``output`` bound what is charged; ``expected`` is what the reply will likely hold of KV memory."""

    prompt: int
    output: int
    expected: int

    @property
    def reserved(self) -> int:
        """Tokens reserved before the work."""
        return self.prompt + self.output


def asked_output(fields: Mapping[str, Any]) -> int | None:
    """Longest reply that the client asks for. Raises InvalidRequestError."""
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidRequestError(f"'{name}' must be a whole number.", code="invalid_type", param=name)
        return value
    return None


def asked_choices(fields: Mapping[str, Any]) -> int:
    """How many replies are asked for at once; what is not a number is the engine's to refuse."""
    value = fields.get("n")
    return max(1, min(value, _MOST_CHOICES)) if isinstance(value, int) and not isinstance(value, bool) else 1


def cost_of(
    learnt: Learnt, *, body_bytes: int, asked: int | None, most_output: int | None, choices: int, max_model_len: int
) -> Cost:
    """What a request may cost on a version. ``most_output`` is the tier's bound on one reply."""
    prompt = min(learnt.prompt_tokens(body_bytes), max_model_len)
    room = max(1, max_model_len - prompt)
    bounds = [room, *(bound for bound in (asked, most_output) if bound is not None)]
    output = min(bounds)
    expected = min(output, round(learnt.output * 1.25) + 1)
    return Cost(prompt=prompt, output=output * choices, expected=prompt + expected * choices)

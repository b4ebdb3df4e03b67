"""The answers of both versions side by side, for an engineer; small enough for a ConfigMap."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidewheel.rollout.quality.prompts import Reply, Shadow
from tidewheel.rollout.quality.scoring import QualityVerdict

MOST_BYTES: Final = 500_000
"""Half of what a ConfigMap may hold."""
_LONGEST_ANSWER: Final = 2_000
_SHORTEST_ANSWER: Final = 40


def artefact(verdict: QualityVerdict, shadows: Sequence[Shadow], *, most_bytes: int = MOST_BYTES) -> str:
    """JSON, the worst prompts first; answers are cut alike until it fits."""
    order = {name: place for place, name in enumerate(verdict.worst)}
    ranked = sorted(shadows, key=lambda shadow: order.get(shadow.prompt.name, len(order)))
    cut = _LONGEST_ANSWER
    while True:
        text = json.dumps(_document(verdict, ranked, cut), ensure_ascii=False, indent=1)
        if len(text.encode()) <= most_bytes or cut <= _SHORTEST_ANSWER:
            break
        cut //= 2
    while len(text.encode()) > most_bytes and ranked:
        ranked = ranked[: len(ranked) // 2]
        text = json.dumps(_document(verdict, ranked, cut), ensure_ascii=False, indent=1)
    return text


def _document(verdict: QualityVerdict, shadows: Sequence[Shadow], cut: int) -> Mapping[str, Any]:
    return {
        "verdict": verdict.kind.value,
        "message": verdict.message,
        "asked": verdict.asked,
        "answered": verdict.answered,
        "findings": [finding.words for finding in verdict.findings],
        "prompts": [
            {
                "name": shadow.prompt.name,
                "question": str(shadow.prompt.messages[-1]["content"])[:cut],
                "base": _said(shadow.base, cut),
                "canary": _said(shadow.canary, cut),
            }
            for shadow in shadows
        ],
    }


def _said(reply: Reply, cut: int) -> str:
    if reply.error:
        return f"<no answer: {reply.error[:200]}>"
    return reply.text if len(reply.text) <= cut else f"{reply.text[:cut]} <cut>"

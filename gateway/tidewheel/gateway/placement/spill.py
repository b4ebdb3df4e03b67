"""Whether a request that would wait here goes to another region. Pure.

What waiting costs is compared, in seconds until the work begins: here, the queue; there, its queue, the way to it
(``penalty``) and the prompt that is warm here and cold there (``cold``). Nobody goes where nothing is won, and a wait
that cannot be estimated is no reason to go.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """What a peer says that a request of this kind would wait there, in seconds."""

    region: str
    wait: float


@dataclass(frozen=True, slots=True)
class Place:
    """``region`` None is here; ``reason`` says why, with the numbers."""

    region: str | None
    reason: str


def choose_place(here: float | None, offers: Sequence[Offer], *, penalty: float, cold: float) -> Place:
    """The cheaper one; here, where both cost the same."""
    if here is None:
        return Place(None, "how long it would wait here is not known")
    if here <= 0:
        return Place(None, "there is room here")
    best = min(offers, key=lambda offer: (offer.wait, offer.region), default=None)
    if best is None:
        return Place(None, "no peer serves this version")
    there = best.wait + penalty + cold
    words = f"{here:.2f} s here, {there:.2f} s in {best.region} ({best.wait:.2f} + {penalty:.2f} + {cold:.2f} cold)"
    return Place(best.region if there < here else None, words)


def cold_seconds(*, prompt_tokens: int, warm_share: float, prefill_rate: float) -> float:
    """Time to compute elsewhere what a replica here has cached; ``prefill_rate`` in tokens per second."""
    return prompt_tokens * min(1.0, max(0.0, warm_share)) / prefill_rate if prefill_rate > 0 else 0.0

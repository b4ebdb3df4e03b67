"""How long a replica takes from its order to its first token, and so how far ahead to look."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

KEPT_SAMPLES: Final = 20
PRIOR_SECONDS: Final = 180.0
"""Before anything was measured."""
ENOUGH: Final = 3


class StartPath(StrEnum):
    """What was there already."""

    WARM = "warm"
    """The node held the image."""
    COLD = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """One measured start, in seconds; phases add up to ``total``."""

    total: float
    path: StartPath
    scheduled: float = 0.0
    image: float = 0.0
    engine: float = 0.0
    """Weights, compilation, first token: what the engine itself took."""


def nearest_rank(values: Iterable[float], share: float) -> float:
    """The smallest value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def lead_seconds(samples: Sequence[ColdStart], *, prior_seconds: float = PRIOR_SECONDS) -> float:
    """p95 of the measured starts, all paths together: the next one may be any of them.

    With fewer than three it is never below the prior: one lucky start is no distribution.
    """
    totals = [sample.total for sample in samples]
    if len(totals) >= ENOUGH:
        return nearest_rank(totals, 0.95)
    return max([prior_seconds, *totals])


def stuck_after_seconds(samples: Sequence[ColdStart], *, prior_seconds: float = PRIOR_SECONDS) -> float:
    """A start that takes longer than this is replaced once and reported: three times the worst seen, or the prior."""
    return 3.0 * max([sample.total for sample in samples], default=prior_seconds)


def start_eta(samples: Sequence[ColdStart], *, prior_seconds: float = PRIOR_SECONDS) -> tuple[float, float]:
    """p50 and p90 of a start; before three were measured the lead, and twice that."""
    totals = [sample.total for sample in samples]
    if len(totals) >= ENOUGH:
        return nearest_rank(totals, 0.5), nearest_rank(totals, 0.9)
    lead = lead_seconds(samples, prior_seconds=prior_seconds)
    return lead, 2.0 * lead

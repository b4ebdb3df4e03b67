"""Histograms: quantiles, counts over an edge, and the edges at which two arms are compared."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log
from operator import neg
from typing import Final

from tidewheel.rollout.judge.blocks import Counts

QUANTILES: Final = (0.50, 0.90, 0.95, 0.99)
TAIL_OBSERVATIONS: Final = 5.0
"""A quantile is an estimate only with this many observations expected beyond it: 500 for the 99th percentile."""
_LANDMARK_SHARES: Final = (0.01, 0.05, 0.10, 0.50)
_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile's value; ``off_scale``: it lies beyond the last edge, and ``value`` is that edge."""

    value: float
    off_scale: bool = False


def quantile(counts: Counts, edges: Sequence[float], share: float) -> Quantile | None:
    """Interpolated on the logarithm, for edges are a constant factor apart. None without observations."""
    return _quantile(counts, tuple(accumulate(counts)), edges=edges, share=share)


def _quantile(counts: Counts, below: Sequence[float], *, edges: Sequence[float], share: float) -> Quantile | None:
    """``below``: running totals of ``counts``, so that several quantiles of one histogram share them."""
    total = below[-1] if below else 0.0
    if total <= 0:
        return None
    bucket = bisect_left(below, share * total)
    while bucket < len(edges) and counts[bucket] <= 0:
        bucket += 1
    if bucket >= len(edges):
        return Quantile(edges[-1], off_scale=True)
    left = share * total - (below[bucket - 1] if bucket else 0.0)
    high = edges[bucket]
    low = edges[bucket - 1] if bucket else high / 2
    return Quantile(exp(log(low) + max(0.0, left) / counts[bucket] * (log(high) - log(low))))


def over_edge(counts: Counts, edge: int) -> float:
    """Observations above edge number ``edge``."""
    return sum(counts[edge + 1 :])


def edge_after(edges: Sequence[float], edge: int, factor: float) -> int:
    """The edge nearest to ``factor`` times edge number ``edge``, but a later one; the last where there is none."""
    target = edges[edge] * factor
    after = min(max(bisect_left(edges, target), edge + 1), len(edges) - 1)
    before = after - 1
    return before if before > edge and target / edges[before] <= edges[after] / target else after


def edge_before(edges: Sequence[float], edge: int, factor: float) -> int:
    """The last edge that is at most ``factor`` times edge number ``edge``."""
    return bisect_right(edges, edges[edge] * factor * (1 + _ROUNDING)) - 1


def landmarks(history: Counts, *, shares: Sequence[float] = _LANDMARK_SHARES) -> tuple[int, ...]:
    """Edges over which about these shares of ``history`` lie: far in the tail, and in the body.

    Chosen before the data that they are used on, else the evidence would have been picked.
    """
    total = sum(history)
    if total <= 0:
        return ()
    over, above = [], total
    for count in history[:-1]:
        above -= count
        over.append(above / total)
    chosen = {_nearest(over, share) for share in shares}
    return tuple(sorted(edge for edge in chosen if over[edge] > 0))


def _nearest(falling: Sequence[float], value: float) -> int:
    """The first position whose number is nearest to ``value``; numbers never rise."""
    below = bisect_left(falling, -value, key=neg)
    if below == 0:
        return 0
    above = bisect_left(falling, -falling[below - 1], key=neg)
    if below == len(falling) or falling[above] - value <= value - falling[below]:
        return above
    return below


@dataclass(frozen=True, slots=True)
class Comparison:
    """The worst checkable quantile of the canary, as a ratio to base's."""

    quantile: float
    canary: Quantile
    base: Quantile

    @property
    def ratio(self) -> float:
        """A lower bound where the canary is off the scale; infinite is never real."""
        return self.canary.value / self.base.value


def compare(canary: Counts, base: Counts, *, edges: Sequence[float], any_quantile: bool) -> Comparison | None:
    """The quantile with the largest ratio, among those with enough observations beyond them."""
    pairs = []
    mine_below, other_below = tuple(accumulate(canary)), tuple(accumulate(base))
    fewest = min(mine_below[-1], other_below[-1]) if canary and base else 0.0
    for share in QUANTILES if any_quantile else (0.99,):
        if fewest * (1 - share) >= TAIL_OBSERVATIONS * (1 - 1e-9):
            mine = _quantile(canary, mine_below, edges=edges, share=share)
            other = _quantile(base, other_below, edges=edges, share=share)
            if mine is not None and other is not None:
                pairs.append(Comparison(share, mine, other))
    return max(pairs, key=lambda pair: pair.ratio, default=None)

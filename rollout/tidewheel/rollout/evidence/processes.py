"""One e-process for every question of the judge: are successes more likely than a limit allows?

A *block* (30 s of traffic) gives x successes and y failures. Under the null hypothesis their odds are at most those of
the limit; under the alternatives they are g times those, g from a grid. Three questions are asked this way:

- pair: of the bad events of both arms, how many are the canary's? Null odds ``n_canary / n_base``. Only the split of
  bad events counts, so waves of traffic and of trouble that hit both arms cancel.
- rate: how many requests of one arm are bad? Null odds ``p / (1 - p)`` of a stated limit p.
- sign: in how many blocks is a number beyond its limit? Null odds 1.

Requests of one block are not independent: replicas differ, tenants come in bursts. So the odds of each block may
stray from their mean by *noise*, the standard deviation of their logarithm (a beta-binomial law), and the noise is
unknown. The evidence is a universal-inference ratio (Wasserman, Ramdas, Balakrishnan 2020):

    E = mean over (g, noise) of L(data; g, noise) / max over noise of L(data; limit, noise)

For whatever noise is true, the denominator is at least the true likelihood, so E is at most a non-negative martingale
that starts at 1, and by Ville's inequality it ever reaches T with probability at most 1/T, at any number of looks and
whenever one stops. What is approximate: noise between two grid points, and noise that lasts over blocks.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import pairwise
from math import exp, inf, lgamma, log
from typing import Final

ODDS_RATIOS: Final = (1.1, 1.2, 1.35, 1.6, 2.0, 2.5, 3.5, 5.0, 8.0, 16.0, 50.0)
"""How much worse than the limit the alternatives are."""
NOISE_LEVELS: Final = (0.0, 0.1, 0.15, 0.22, 0.33, 0.5, 0.75, 1.1, 1.7)
"""Standard deviations of the log odds of a block. 15 % of latency noise in both arms is 0.5 at the median of a
distribution with sigma 0.35 and 1.6 at its 99th percentile."""
NO_NOISE: Final = (0.0,)


class Side(Enum):
    """On which side of the limit the alternatives lie."""

    ABOVE = 1
    BELOW = -1


class EvidenceProcess:
    """Evidence against "the odds are within the limit", for several columns of counts that share their limit."""

    __slots__ = ("_alternatives", "_logarithms", "_noise", "_nulls", "_odds_ratios", "blocks")

    def __init__(
        self,
        *,
        columns: int = 1,
        side: Side = Side.ABOVE,
        noise_levels: Sequence[float] = NOISE_LEVELS,
    ) -> None:
        assert columns > 0
        assert all(low < high for low, high in pairwise(noise_levels))
        self._noise = tuple(noise_levels)
        self._odds_ratios = tuple(ratio**side.value for ratio in ODDS_RATIOS)
        self._nulls = [[0.0] * len(self._noise) for _ in range(columns)]
        self._alternatives = [[0.0] * (len(self._noise) * len(ODDS_RATIOS)) for _ in range(columns)]
        self._logarithms: tuple[float, ...] | None = None
        self.blocks = 0

    def add(self, *, limit_odds: float, counts: Sequence[tuple[float, float]]) -> None:
        """One block. ``counts``: successes and failures, a pair per column; they need not be whole numbers."""
        assert len(counts) == len(self._nulls)
        if not 0.0 < limit_odds < inf or not any(x + y for x, y in counts):
            return
        self.blocks += 1
        self._logarithms = None
        _accumulate(self._nulls, counts, limit_odds=limit_odds, odds_ratios=(1.0,), noise_levels=self._noise)
        _accumulate(
            self._alternatives, counts, limit_odds=limit_odds, odds_ratios=self._odds_ratios, noise_levels=self._noise
        )

    def log_evidence(self) -> tuple[float, ...]:
        """Natural logarithm of the evidence, per column; 0 before anything was counted."""
        if self._logarithms is None:
            self._logarithms = tuple(
                log_mean_exp(alternatives) - max(nulls)
                for alternatives, nulls in zip(self._alternatives, self._nulls, strict=True)
            )
        return self._logarithms


def log_mean_exp(logarithms: Iterable[float]) -> float:
    """Logarithm of the mean of the numbers whose logarithms are given: a mean of evidence is evidence."""
    values = list(logarithms)
    top = max(values)
    if top == -inf:
        return -inf
    return top + log(sum([exp(value - top) for value in values]) / len(values))


def _accumulate(
    totals: list[list[float]],
    counts: Sequence[tuple[float, float]],
    *,
    limit_odds: float,
    odds_ratios: Sequence[float],
    noise_levels: Sequence[float],
) -> None:
    """Add each block's log likelihood. The binomial coefficient is left out: it cancels in every ratio."""
    cell = 0
    filled = [(total, x, y, x + y) for total, (x, y) in zip(totals, counts, strict=True) if x + y]
    for odds_ratio in odds_ratios:
        odds = limit_odds * odds_ratio
        share, rest = odds / (1 + odds), 1 / (1 + odds)
        log_share, log_rest = log(share), log(rest)
        for noise in noise_levels:
            if noise:
                a, b = 1 / (rest * noise * noise), 1 / (share * noise * noise)
                whole = a + b
                offset = lgamma(whole) - lgamma(a) - lgamma(b)
                for total, x, y, n in filled:
                    total[cell] += offset + lgamma(x + a) + lgamma(y + b) - lgamma(n + whole)
            else:
                for total, x, y, _ in filled:
                    total[cell] += x * log_share + y * log_rest
            cell += 1

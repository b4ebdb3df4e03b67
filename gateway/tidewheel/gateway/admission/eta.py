"""How long a request will wait: work ahead of it over the rate at which work leaves, and how wrong such words were.

The rate comes from Little's law: what is in flight, over how long work of that kind stays. It is right from the first
moment of a queue, where counting completions would still tell of the idle time before.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from tidewheel.gateway.admission.lanes import FLOORS, Lanes, Ticket

_MEMORY_SECONDS: Final = 45.0
_QUOTES: Final = 256
_LEAST_QUOTE: Final = 0.05


@dataclass(slots=True)
class Drain:
    """Mean time that a token of cost stays in flight, over about the last minute."""

    _cost: float = 0.0
    _held: float = 0.0
    _at: float = 0.0

    def note(self, *, cost: float, seconds: float, now: float) -> None:
        """Work of this cost left after so many seconds."""
        fade = math.exp(-max(0.0, now - self._at) / _MEMORY_SECONDS) if self._cost else 0.0
        self._cost = self._cost * fade + cost
        self._held = self._held * fade + cost * seconds
        self._at = now

    def rate(self, in_flight: float) -> float | None:
        """Cost that leaves in a second, or None before anything has."""
        return in_flight * self._cost / self._held if self._held > 0 else None


@dataclass(slots=True)
class Flow:
    """Cost that arrives in a second, over about the last minute."""

    _level: float = 0.0
    _at: float = 0.0

    def note(self, cost: float, now: float) -> None:
        """Work of this cost came."""
        self._level = self.rate(now) + cost / _MEMORY_SECONDS
        self._at = now

    def rate(self, now: float) -> float:
        """Per second."""
        return self._level * math.exp(-max(0.0, now - self._at) / _MEMORY_SECONDS)


@dataclass(frozen=True, slots=True)
class Estimate:
    """``position`` 1 is the next one. ``seconds`` is None while nothing is known of the rate; 80 % of waits end in
    [low, high]. ``computed`` is the bare quotient, before past errors correct it."""

    position: int
    seconds: float | None
    low: float | None = None
    high: float | None = None
    computed: float | None = None


def is_bearable(estimate: Estimate, *, limit: float, in_flight: int) -> bool:
    """Whether to let a request wait: nine of ten like it must have their turn within the limit.

    Before anything has ended there is no rate; then as many may wait as are in flight.
    """
    if estimate.seconds is None:
        return estimate.position <= max(1, in_flight)
    return (estimate.seconds if estimate.high is None else estimate.high) <= limit


@dataclass(slots=True)
class QuoteErrors:
    """Waits that came about, as multiples of what was quoted."""

    _ratios: deque[float] = field(default_factory=lambda: deque(maxlen=_QUOTES))
    _sorted: list[float] | None = None

    def note(self, *, quoted: float, waited: float) -> None:
        """One wait is over."""
        if quoted >= _LEAST_QUOTE:
            self._ratios.append(waited / quoted)
            self._sorted = None

    def factor(self, share: float) -> float:
        """Quantile; before there is enough to learn from, 0.5 to 2 around 1."""
        if len(self._ratios) < 16:
            return 4.0 ** (share - 0.5) if share != 0.5 else 1.0
        if self._sorted is None:
            self._sorted = sorted(self._ratios)
        return self._sorted[min(len(self._sorted) - 1, int(share * len(self._sorted)))]


class Queue:
    """The waiting work of one lane, laid out once so that many estimates cost little."""

    def __init__(self, lanes: Lanes, lane: str) -> None:
        own = lanes[lane]
        self._lane = own
        self._costs, self._cost_sums = _sums(own.costs())
        self._counts, self._count_sums = _sums([float(count) for count in own.counts()])
        self._above_cost = sum(higher.cost for higher in lanes.above(lane))
        self._above_count = sum(len(higher) for higher in lanes.above(lane))

    def ahead(self, ticket: Ticket) -> tuple[int, float]:
        """Requests and cost before a ticket of this lane, in the lane or about to enter it."""
        count, cost = self._lane.own_ahead(ticket)
        own_count, own_cost = self._lane.of_user(ticket.user)
        turns, reach = float(count + 1), cost + ticket.cost
        # Others are served in turn: as much as they have, but no more than this user has had by then.
        others_cost = _capped(self._costs, self._cost_sums, reach) - min(own_cost, reach)
        others_count = _capped(self._counts, self._count_sums, turns) - min(float(own_count), turns)
        ahead = count + max(0.0, others_count) + self._above_count
        return int(ahead), cost + max(0.0, others_cost) + self._above_cost


def lane_rate(drain: float, lane: str, arriving_above: float) -> float:
    """What of the drain is left for a lane; never below its guaranteed share."""
    floor = FLOORS[lane] if FLOORS[lane] else 1.0
    return max(drain - arriving_above, drain * floor) if lane != "paid" else drain


def _sums(values: Sequence[float]) -> tuple[list[float], list[float]]:
    ordered = sorted(values)
    return ordered, [0.0, *accumulate(ordered)]


def _capped(ordered: Sequence[float], sums: Sequence[float], cap: float) -> float:
    """Sum of min(value, cap)."""
    below = bisect_left(ordered, cap)
    return sums[below] + cap * (len(ordered) - below)

"""The policies that are compared. Each is told the demand of a bucket when it has ended, and says what to order.

All of them hold the highest order of the last ten minutes, hold everything while demand is unknown, and never ask for
less than one replica.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from tidewheel.autoscaler.backtest.series import Series
from tidewheel.autoscaler.forecast.calendar import Calendar
from tidewheel.autoscaler.forecast.combination import Forecaster
from tidewheel.autoscaler.forecast.history import Floats
from tidewheel.autoscaler.need import HOLD_SECONDS, HighestNeed, unit_need

FIXED_HEADROOM: Final = 1.2


class Policy(Protocol):
    """One policy on one series, at one lead."""

    def order(self, bucket: int, demand: float | None) -> int:
        """Replicas ordered from now on; ``demand`` is that of the bucket that has just ended."""
        ...


class _Held:
    """What all policies share: the down window and the hold while blind."""

    def __init__(self, calendar: Calendar) -> None:
        self._window = HighestNeed(calendar.buckets(HOLD_SECONDS))

    def hold(self, need: float | None) -> int:
        return max(1, math.ceil(self._window.add(need) - 1e-9))


@dataclass(frozen=True, slots=True)
class Expected:
    """What the forecaster said when a bucket had ended."""

    peak: float
    margin: float


class Forecasts:
    """The forecaster's word after each bucket, worked out once for all policies that build on it."""

    def __init__(self, calendar: Calendar, lead_seconds: float, *, quantile: float = 0.99) -> None:
        self._forecaster = Forecaster(calendar, lead_seconds=lead_seconds, quantile=quantile)
        self._known: dict[int, Expected] = {}

    def after(self, bucket: int, demand: float | None) -> Expected:
        """Buckets in order; one that was asked for before has the same answer."""
        found = self._known.get(bucket)
        if found is None:
            self._forecaster.observe(bucket, demand)
            forecast = self._forecaster.forecast()
            found = self._known[bucket] = Expected(forecast.peak, forecast.margin.factor)
        return found


class Ours:
    """The forecaster and the need as the operator computes them."""

    def __init__(self, calendar: Calendar, forecasts: Forecasts) -> None:
        self._forecasts = forecasts
        self._held = _Held(calendar)

    def order(self, bucket: int, demand: float | None) -> int:
        """Forecast times its own margin, never below present demand."""
        expected = self._forecasts.after(bucket, demand)
        need = unit_need(expected.peak, margin=expected.margin, present=demand)
        return self._held.hold(need if demand is not None else max(need, self._held.hold(None)))


class DemandHpa:
    """ceil(demand / utilisation), as a HorizontalPodAutoscaler on offered demand does it."""

    def __init__(self, calendar: Calendar, *, utilisation: float) -> None:
        self._utilisation = utilisation
        self._held = _Held(calendar)

    def order(self, bucket: int, demand: float | None) -> int:
        """Knows nothing of lead."""
        return self._held.hold(None if demand is None else demand / self._utilisation)


class LastValue:
    """The mean of the last 30 minutes with fixed headroom."""

    def __init__(self, calendar: Calendar) -> None:
        self._recent: deque[float] = deque(maxlen=calendar.buckets(1800))
        self._held = _Held(calendar)

    def order(self, bucket: int, demand: float | None) -> int:
        """Persistence."""
        if demand is None:
            return self._held.hold(None)
        self._recent.append(demand)
        return self._held.hold(FIXED_HEADROOM * sum(self._recent) / len(self._recent))


class SeasonalNaive:
    """The same time yesterday with fixed headroom; persistence on the first day."""

    def __init__(self, calendar: Calendar, lead_seconds: float) -> None:
        self._calendar = calendar
        self._lead = calendar.buckets(lead_seconds)
        self._known: dict[int, float] = {}
        self._held = _Held(calendar)

    def order(self, bucket: int, demand: float | None) -> int:
        """Yesterday, at the time the order will serve."""
        if demand is not None:
            self._known[bucket] = demand
        target = bucket + 1 + self._lead - self._calendar.per_day
        found = self._known.get(target, demand)
        return self._held.hold(None if found is None else FIXED_HEADROOM * found)


class FixedHeadroom:
    """Our forecast with fixed headroom in place of its own margin."""

    def __init__(self, calendar: Calendar, forecasts: Forecasts) -> None:
        self._forecasts = forecasts
        self._held = _Held(calendar)

    def order(self, bucket: int, demand: float | None) -> int:
        """Forecast and a fifth."""
        peak = self._forecasts.after(bucket, demand).peak
        return self._held.hold(unit_need(peak, margin=FIXED_HEADROOM, present=demand))


class Oracle:
    """Knows the future, but only as far as the lead: the price of a cold start, with perfect foresight."""

    def __init__(self, calendar: Calendar, lead_seconds: float, series: Series) -> None:
        self._values: Floats = series.values
        self._first = series.first_bucket
        self._span = calendar.buckets(lead_seconds) + 1

    def order(self, bucket: int, demand: float | None) -> int:
        """The highest demand until the order would serve."""
        begin = bucket + 1 - self._first
        ahead = self._values[begin : begin + self._span]
        known = ahead[np.isfinite(ahead)]
        return max(1, math.ceil(float(known.max()) - 1e-9)) if known.size else 1

"""All predictors together, each weighed by its recent errors at the lead that matters.

A predictor is judged by what it would have cost to be safe with it: its mean forecast times the margin that its own
errors ask for. A forecast that is a little worse on the mean but never caught far below is the cheaper one.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidewheel.autoscaler.forecast.calendar import Calendar
from tidewheel.autoscaler.forecast.history import Floats, History
from tidewheel.autoscaler.forecast.predictors import (
    WEEKS,
    HarmonicWithResidual,
    HoltWinters,
    LastValue,
    Predictor,
    ProfileRatio,
)
from tidewheel.autoscaler.margin import Margin, MarginWindow, upper_quantile

TRAILING_DAYS: Final = 5
MARGIN_DAYS: Final = 5
SHARPNESS: Final = 20.0
"""A predictor that costs 5 % more than the cheapest weighs 1/e of it."""
ERROR_SECONDS: Final = 600
"""Errors of single predictors are kept no closer than this."""
_LARGEST_RATIO: Final = 60_000.0
WEIGH_SECONDS: Final = 1800
"""Weights are worked out again after so long."""


def predictors_for(seasons: Sequence[str] = ("daily", "weekly")) -> tuple[Predictor, ...]:
    """Last value always; seasonal ones for the seasons that are allowed."""
    chosen: list[Predictor] = [LastValue()]
    if "daily" in seasons:
        chosen += [ProfileRatio(), HoltWinters(), HarmonicWithResidual()]
    if "weekly" in seasons:
        chosen.append(ProfileRatio(days=WEEKS))
    return tuple(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What comes: index 0 of ``values`` is the bucket after the last one that ended."""

    values: Floats
    lead_buckets: int
    margin: Margin
    weights: tuple[tuple[str, float], ...]
    """Predictors by weight, the heaviest first; those that could not say are left out."""

    @property
    def at_lead(self) -> float:
        """The value for now + lead."""
        return float(self.values[self.lead_buckets])

    @property
    def peak(self) -> float:
        """The highest value until now + lead + one bucket."""
        return float(self.values.max())


class Forecaster:
    """One series at one lead. Give it each bucket once, in order; ask after each."""

    def __init__(
        self,
        calendar: Calendar,
        *,
        lead_seconds: float,
        quantile: float = 0.99,
        seasons: Sequence[str] = ("daily", "weekly"),
    ) -> None:
        self.history = History(calendar)
        self.quantile = quantile
        self.lead_buckets = calendar.buckets(lead_seconds)
        self._predictors = predictors_for(seasons)
        self._names = tuple(name for predictor in self._predictors for name in predictor.names)
        self._due: deque[tuple[int, Floats, float]] = deque()
        self._thin = max(1, ERROR_SECONDS // calendar.step_seconds)
        size = TRAILING_DAYS * calendar.per_day // self._thin
        # Half precision: ratios near one, for thousands of series, and only their order matters.
        self._ratios: NDArray[np.float16] = np.full((len(self._names), size), np.nan, dtype=np.float16)
        self._mean_made: Floats = np.full(len(self._names), np.nan)
        self._memory = 1.0 / size
        self._seen = 0
        self._margin = MarginWindow(MARGIN_DAYS * calendar.per_day)
        self._weights: Floats | None = None
        self._weigh_every = max(1, WEIGH_SECONDS // (self._thin * calendar.step_seconds))
        self._last: Forecast | None = None

    def observe(self, bucket: int, value: float | None, *, flagged: bool = False) -> None:
        """The mean of a bucket that has ended; None where it is unknown."""
        before = self.history.end
        self.history.append(bucket, value, flagged=flagged)
        for predictor in self._predictors:
            predictor.observe(self.history)
        if self.history.length > 1 and before != bucket:
            self._due.clear()
        usable = bool(self.history.usable[self.history.length - 1])
        while self._due and self._due[0][0] <= bucket:
            target, made, combined = self._due.popleft()
            if target == bucket and usable:
                assert value is not None
                self._settle(value, made, combined)
        self._last = None

    def learn(self, first: int, values: Sequence[float | None], flagged: Sequence[bool] = ()) -> None:
        """Many ended buckets from ``first`` on, as at a start.

        Forecasts are made only where their errors would still be kept, and for a day before to learn the weights that
        they are made with: a fraction of the work of a forecast after each bucket.
        """
        per_day = self.history.calendar.per_day
        kept_from = len(values) - TRAILING_DAYS * per_day
        for index, value in enumerate(values):
            if index == kept_from:
                self._margin = MarginWindow(MARGIN_DAYS * per_day)
            self.observe(first + index, value, flagged=bool(flagged) and flagged[index])
            if index >= kept_from - per_day and (self.history.end + self.lead_buckets + 1) % self._thin == 0:
                self.forecast()

    def forecast(self) -> Forecast:
        """For the buckets up to now + lead + one. Raises ValueError before the first bucket."""
        if self._last is None:
            self._last = self._forecast()
        return self._last

    def replayed(self, other: "Forecaster") -> "Forecaster":
        """``other``, new and with other settings, once it has seen the same history."""
        history = self.history
        # As many days as errors are kept for, and the week that profiles need before them.
        length = min(history.length, (TRAILING_DAYS + 7) * history.calendar.per_day)
        window = slice(history.length - length, history.length)
        pairs = zip(history.values[window].tolist(), history.usable[window].tolist(), strict=True)
        other.learn(history.end - length, [value if usable else None for value, usable in pairs])
        return other

    def _forecast(self) -> Forecast:
        history = self.history
        if not history.length:
            raise ValueError("a forecast needs at least one bucket of history")
        targets = np.arange(history.end, history.end + self.lead_buckets + 2, dtype=np.int64)
        rows = np.concatenate([predictor.predict(history, targets) for predictor in self._predictors])
        known = np.isfinite(rows).all(axis=1)
        weights = np.where(known, self._current_weights(), 0.0)
        total = weights.sum()
        weights = weights / total if total > 0 else known / known.sum()
        values = np.where(known[:, None], rows, 0.0).T @ weights
        at_lead = self.lead_buckets
        if not self._due or self._due[-1][0] < targets[at_lead]:
            self._due.append((int(targets[at_lead]), rows[:, at_lead].copy(), float(values[at_lead])))
        order = np.argsort(-weights, kind="stable")
        return Forecast(
            values=values,
            lead_buckets=at_lead,
            margin=self._margin.margin(self.quantile, at=float(values.max())),
            weights=tuple((self._names[i], float(weights[i])) for i in order if weights[i] > 0),
        )

    def _settle(self, value: float, made: Floats, combined: float) -> None:
        floor = 1e-3 * max(self.history.median(), 1e-9)
        self._margin.add(actual=value + floor, forecast=max(combined, 0.0) + floor)
        if self.history.end % self._thin:
            return
        ratios = (value + floor) / (np.maximum(made, 0.0) + floor)
        self._ratios[:, self._seen % self._ratios.shape[1]] = np.minimum(ratios, _LARGEST_RATIO)
        before = np.where(np.isfinite(self._mean_made), self._mean_made, made)
        share = max(self._memory, 1.0 / (self._seen + 1))
        self._mean_made = np.where(np.isfinite(made), before + share * (made - before), before)
        self._seen += 1
        if self._seen % self._weigh_every == 0:
            self._weights = None

    def _current_weights(self) -> Floats:
        if self._weights is None:
            self._weights = self._weigh()
        return self._weights

    def _weigh(self) -> Floats:
        """exp(-sharpness x relative extra cost), over the buckets at which every known predictor said something."""
        samples = min(self._seen, self._ratios.shape[1])
        prior = np.array([1.0 if name == "last 30 min" else 1e-3 for name in self._names])
        if samples * self._thin < 2 * self.lead_buckets + 6:
            return prior
        cost = np.full(len(self._names), np.inf)
        for row, ratios in enumerate(self._ratios[:, :samples]):
            known = ratios[np.isfinite(ratios)]
            if known.size >= 0.5 * samples:
                cost[row] = max(1.0, upper_quantile(known, self.quantile)) * self._mean_made[row]
        best = float(cost.min())
        if not np.isfinite(best) or best <= 0:
            return prior
        weights: Floats = np.exp(-SHARPNESS * (cost / best - 1.0))
        return weights

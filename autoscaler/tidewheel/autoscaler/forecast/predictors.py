"""The predictors. Each knows a history and says what the coming buckets will be; several rows where it has settings.

No predictor looks at anything but buckets that have ended. The formulas are the classical ones (Holt and Winters 1960,
harmonic regression with an autoregressive residual); ``docs/autoscaling.md`` says what libraries were measured.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from tidewheel.autoscaler.forecast.calendar import Ints
from tidewheel.autoscaler.forecast.history import PROFILE_DAYS, Floats, History

LEVEL_SECONDS: Final = 1800
"""The level of now is the mean of this long: shorter follows noise, longer lags."""
EXPONENTS: Final = (1.0, 0.7, 0.4)
WEEKS: Final = (7, 14, 21, 28)


class Predictor(Protocol):
    """``names`` has one entry per row of ``predict``."""

    names: tuple[str, ...]

    def observe(self, history: History) -> None:
        """A bucket was appended."""
        ...

    def predict(self, history: History, targets: Ints) -> Floats:
        """Shape (names, targets), in the history's unit; NaN where it cannot say."""
        ...


class LastValue:
    """The mean of the last minutes, for windows of 10, 30 and 60. It always takes part."""

    names: tuple[str, ...] = ("last 10 min", "last 30 min", "last 60 min")

    def observe(self, history: History) -> None:
        """Nothing is learnt."""

    def predict(self, history: History, targets: Ints) -> Floats:
        """The same for every target."""
        return np.array([np.full(targets.size, recent_mean(history, seconds)) for seconds in (600, 1800, 3600)])


class ProfileRatio:
    """Mean of the same time of day on past days, times the present level to a power: ``profile(s) * level ** a``."""

    def __init__(self, days: Sequence[int] = PROFILE_DAYS, exponents: Sequence[float] = EXPONENTS) -> None:
        self._days = tuple(days)
        self._exponents = np.array(exponents)
        unit = "days" if self._days == PROFILE_DAYS else "weeks"
        self.names: tuple[str, ...] = tuple(f"profile of {unit} x level^{power:g}" for power in exponents)

    def observe(self, history: History) -> None:
        """Nothing is learnt: the profile is read from the history."""

    def predict(self, history: History, targets: Ints) -> Floats:
        """NaN without a day (or week) of history."""
        count = history.calendar.buckets(LEVEL_SECONDS)
        recent = np.arange(history.end - count, history.end, dtype=np.int64)
        both = history.profile(np.concatenate([recent, targets]), self._days)
        before, ahead = both[:count], both[count:]
        values, usable = history.at(recent)
        usable &= np.isfinite(before)
        expected = before[usable].sum()
        if not usable.any() or expected <= 0:
            return np.full((self._exponents.size, targets.size), np.nan)
        level = float(values[usable].sum() / expected)
        return ahead[None, :] * (level**self._exponents)[:, None]


class HoltWinters:
    """Multiplicative level and daily season, without trend, for several speeds of learning at once.

    Kept as logarithms: ``level += alpha (z - season - level)``, ``season += gamma (z - level - season)``.
    """

    def __init__(self, alphas: Sequence[float] = (0.15, 0.4, 0.8), gammas: Sequence[float] = (0.1, 0.3)) -> None:
        pairs = [(alpha, gamma) for gamma in gammas for alpha in alphas]
        self._alpha = np.array([alpha for alpha, _ in pairs])
        self._gamma = np.array([gamma for _, gamma in pairs])
        self.names: tuple[str, ...] = tuple(f"Holt-Winters {alpha:g}/{gamma:g}" for alpha, gamma in pairs)
        self._level: Floats | None = None
        self._season: Floats | None = None
        self._offset = 0.0

    def observe(self, history: History) -> None:
        """Begins after one day; a hole or a flagged bucket teaches nothing."""
        per_day = history.calendar.per_day
        if self._season is None:
            if history.length >= per_day:
                self._begin(history)
            return
        assert self._level is not None
        index = history.length - 1
        if not history.usable[index]:
            return
        phase = history.calendar.phase(history.end - 1)
        z = float(np.log(history.values[index] + self._offset))
        season = self._season[:, phase]
        level = self._level + self._alpha * (z - season - self._level)
        self._season[:, phase] = season + self._gamma * (z - level - season)
        self._level = level

    def predict(self, history: History, targets: Ints) -> Floats:
        """NaN before two days of history: the first only fills the season."""
        if self._season is None or self._level is None or history.days < 2:
            return np.full((len(self.names), targets.size), np.nan)
        z = self._level[:, None] + self._season[:, history.calendar.phases(targets)]
        return np.maximum(np.exp(z) - self._offset, 0.0)

    def _begin(self, history: History) -> None:
        per_day = history.calendar.per_day
        day = history.values[history.length - per_day : history.length].astype(np.float64)
        self._offset = log_offset(day)
        logs = np.log(day + self._offset)
        smooth = _circular_mean(logs, history.calendar.buckets(LEVEL_SECONDS))
        level = float(logs.mean())
        phases = history.calendar.phases(np.arange(history.end - per_day, history.end, dtype=np.int64))
        season = np.zeros(per_day)
        season[phases] = smooth - level
        self._season = np.tile(season, (len(self.names), 1))
        self._level = np.full(len(self.names), float(logs[-3:].mean() - season[phases[-3:]].mean()))


class HarmonicWithResidual:
    """Six daily waves (and four weekly ones after three weeks) on logarithms, plus what is left of the present error.

    Refitted once a day by least squares; the share of the residual that survives ``h`` buckets is its autocorrelation.
    """

    names: tuple[str, ...] = ("harmonics + residual",)
    _FIT_DAYS: Final = 14

    def __init__(self, *, daily: int = 6, weekly: int = 4) -> None:
        self._daily = daily
        self._weekly = weekly
        self._coefficients: Floats | None = None
        self._survival: Floats = np.ones(1)
        self._residual = 0.0
        self._offset = 0.0
        self._fitted_at = 0
        self._with_week = False

    def observe(self, history: History) -> None:
        """Refits when a day has gone by since the last fit."""
        per_day = history.calendar.per_day
        if history.days >= 2 and history.end - self._fitted_at >= per_day:
            self._fit(history)

    def predict(self, history: History, targets: Ints) -> Floats:
        """NaN before the first fit."""
        if self._coefficients is None:
            return np.full((1, targets.size), np.nan)
        count = history.calendar.buckets(LEVEL_SECONDS)
        recent = np.arange(history.end - count, history.end, dtype=np.int64)
        values, usable = history.at(recent)
        residual = self._residual
        waves = self._design(history, np.concatenate([recent, targets])) @ self._coefficients
        if usable.any():
            residual = float((np.log(values + self._offset) - waves[:count])[usable].mean())
        ahead = np.minimum(targets - history.end, self._survival.size - 1)
        z = waves[count:] + residual * self._survival[ahead]
        return np.maximum(np.exp(z) - self._offset, 0.0)[None, :]

    def _fit(self, history: History) -> None:
        per_day = history.calendar.per_day
        self._fitted_at = history.end
        self._with_week = history.days >= 21
        length = min(history.length, (28 if self._with_week else self._FIT_DAYS) * per_day)
        window = slice(history.length - length, history.length)
        values, usable = history.values[window].astype(np.float64), history.usable[window]
        if usable.sum() < per_day:
            return
        self._offset = log_offset(values[usable])
        logs = np.log(values + self._offset)
        design = self._design(history, np.arange(history.end - length, history.end, dtype=np.int64))
        matrix, target = design[usable], logs[usable]
        products = matrix.T @ matrix + 1e-3 * np.eye(matrix.shape[1])
        found: Floats = np.asarray(np.linalg.solve(products, matrix.T @ target), dtype=np.float64)
        residual = np.where(usable, logs - design @ found, 0.0)
        self._coefficients = found
        self._survival = _autocorrelation(residual, history.calendar.buckets(2 * 3600) + 1)

    def _design(self, history: History, buckets: Ints) -> Floats:
        calendar = history.calendar
        angles = [(calendar.phases(buckets) / calendar.per_day, self._daily)]
        if self._with_week:
            angles.append((calendar.week_phases(buckets) / (7 * calendar.per_day), self._weekly))
        columns = [np.ones(buckets.size)]
        for share, pairs in angles:
            for wave in range(1, pairs + 1):
                columns += [np.sin(2 * np.pi * wave * share), np.cos(2 * np.pi * wave * share)]
        return np.stack(columns, axis=1)


def recent_mean(history: History, seconds: int) -> float:
    """Mean of the usable values of the last ``seconds``; of the last value kept where none is usable."""
    recent = history.last(history.calendar.buckets(seconds))
    if recent.size:
        return float(recent.mean())
    return float(history.values[history.length - 1]) if history.length else 0.0


def log_offset(values: Floats) -> float:
    """Added before a logarithm, so that nights at zero are low and not minus infinity."""
    return max(0.02 * float(values.mean()), 1e-9)


def _circular_mean(values: Floats, count: int) -> Floats:
    if count <= 1:
        return values.copy()
    padded = np.concatenate([values[-count:], values, values[:count]])
    kernel = np.ones(2 * count + 1) / (2 * count + 1)
    return np.asarray(np.convolve(padded, kernel, mode="same")[count:-count], dtype=np.float64)


def _autocorrelation(values: Floats, lags: int) -> Floats:
    """Of lags 1 to ``lags``, within 0 and 1; index 0 is lag 1."""
    power = float(values @ values)
    if power <= 0:
        return np.zeros(lags)
    found = [float(values[:-lag] @ values[lag:]) / power for lag in range(1, min(lags, values.size - 1) + 1)]
    return np.asarray(np.clip(found, 0.0, 1.0), dtype=np.float64)

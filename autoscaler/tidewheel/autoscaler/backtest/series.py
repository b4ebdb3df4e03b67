"""A demand series to replay, and what a hole in it is."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from tidewheel.autoscaler.errors import SeriesError
from tidewheel.autoscaler.forecast.history import PARTIAL_SHARE, Floats

PEAK_QUANTILE: Final = 0.995
_LONGEST_STEP: Final = 1800
_SHORTEST_STEP: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Mean demand per bucket; NaN is unknown. ``first_bucket`` counts from the epoch."""

    name: str
    step_seconds: int
    values: Floats
    first_bucket: int = 0

    @property
    def days(self) -> float:
        """Length in days."""
        return self.values.size * self.step_seconds / 86_400

    @property
    def warm_up(self) -> int:
        """Buckets before the score begins: a week of two or more, three days of a week, else a quarter."""
        per_day = 86_400 // self.step_seconds
        if self.days >= 14:
            return 7 * per_day
        return 3 * per_day if self.days >= 6 else self.values.size // 4

    def scaled(self, peak_replicas: float) -> "Series":
        """In replicas: its 99.5th percentile is ``peak_replicas``."""
        top = float(np.nanquantile(self.values, PEAK_QUANTILE))
        return Series(
            name=self.name,
            step_seconds=self.step_seconds,
            values=self.values / top * peak_replicas,
            first_bucket=self.first_bucket,
        )


def checked_series(series: Series) -> Series:
    """Without partial buckets beside holes. Raises SeriesError for what cannot be replayed."""
    step, values = series.step_seconds, series.values
    if not _SHORTEST_STEP <= step <= _LONGEST_STEP or 86_400 % step:
        raise SeriesError(f"{series.name}: a step of {step} s cannot be replayed; give one of 1 to 30 minutes")
    known = values[np.isfinite(values)]
    if known.size < 24 or series.days < 0.5:
        raise SeriesError(f"{series.name}: {known.size} known values are too few; give at least half a day")
    if (known < 0).any():
        raise SeriesError(f"{series.name}: demand is never negative, but {float(known.min()):g} is there")
    if float(np.quantile(known, PEAK_QUANTILE)) <= 0:
        raise SeriesError(f"{series.name}: demand is zero nearly always; there is nothing to plan")
    hole = ~np.isfinite(values)
    beside = np.zeros_like(hole)
    beside[1:] |= hole[:-1]
    beside[:-1] |= hole[1:]
    partial = beside & (values < PARTIAL_SHARE * float(np.median(known)))
    cleaned = np.where(partial, np.nan, values)
    return Series(name=series.name, step_seconds=step, values=cleaned, first_bucket=series.first_bucket)

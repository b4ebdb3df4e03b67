"""Demand as it was, one value per bucket, with holes and marks.

A hole is filled from the same time of day before (never by a line, never by zero) and is not usable as evidence; a
flagged bucket (a launch, an outage, a load test, a spike) keeps its value and is not usable either.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidewheel.autoscaler.forecast.calendar import Calendar, Ints

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

KEPT_DAYS: Final = 28
PROFILE_DAYS: Final = (1, 2, 3, 4, 5, 6, 7)
PARTIAL_SHARE: Final = 0.05
"""A bucket beside a hole with less than this share of the median is a part of a bucket."""


class History:
    """The last weeks of one series. Buckets are appended in order."""

    def __init__(self, calendar: Calendar, *, kept_days: int = KEPT_DAYS) -> None:
        self.calendar = calendar
        self.kept = kept_days * calendar.per_day
        room = self.kept + calendar.per_day
        self.values: NDArray[np.float32] = np.zeros(room, dtype=np.float32)
        self.usable: Bools = np.zeros(room, dtype=np.bool_)
        self.length = 0
        self.end = 0
        """Bucket after the last one."""
        self._after_hole = False
        self._median: float | None = None

    @property
    def begin(self) -> int:
        """First bucket kept."""
        return self.end - self.length

    @property
    def days(self) -> float:
        """Time since the first bucket kept, in days."""
        return self.length / self.calendar.per_day

    def append(self, bucket: int, value: float | None, *, flagged: bool = False) -> float:
        """Add the next bucket (those left out are holes) and return the value kept for it."""
        if self.length == 0:
            self.end = bucket
        if bucket < self.end:
            raise ValueError(f"bucket {bucket} was given after bucket {self.end - 1}; give buckets in order")
        skipped = min(bucket - self.end, self.kept)
        self.end = bucket - skipped
        for _ in range(skipped):
            self._append(None, flagged=False)
        return self._append(value, flagged=flagged)

    def at(self, buckets: Ints) -> tuple[Floats, Bools]:
        """Values and whether they are evidence; buckets that are not kept are not."""
        position = buckets - self.begin
        known = (position >= 0) & (position < self.length)
        safe = np.where(known, position, 0)
        return self.values[safe].astype(np.float64), self.usable[safe] & known

    def last(self, count: int) -> Floats:
        """The last usable values among the last ``count`` buckets."""
        count = min(count, self.length)
        window = slice(self.length - count, self.length)
        return self.values[window][self.usable[window]].astype(np.float64)

    def profile(self, buckets: Ints, days: Sequence[int] = PROFILE_DAYS) -> Floats:
        """Mean of the usable values at the same time of day on the days before; NaN where there is none."""
        values, usable = self.at(self.calendar.days_before(buckets, days))
        count = usable.sum(axis=0)
        total = np.where(usable, values, 0.0).sum(axis=0)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def flag(self, first: int, last: int) -> None:
        """Take the buckets ``first`` to ``last`` out of the evidence."""
        begin = max(first - self.begin, 0)
        self.usable[begin : max(last + 1 - self.begin, 0)] = False

    def median(self) -> float:
        """Median of the last day of evidence; 0 without any."""
        if self._median is None:
            recent = self.last(self.calendar.per_day)
            self._median = float(np.median(recent)) if recent.size else 0.0
        return self._median

    def _append(self, value: float | None, *, flagged: bool) -> float:
        if value is not None and (not np.isfinite(value) or value < 0):
            value = None
        if value is not None and self._after_hole and value < PARTIAL_SHARE * self.median():
            value = None
        hole = value is None
        if hole and not self._after_hole:
            self._drop_partial()
        kept = self._fill() if value is None else value
        if self.length == self.values.size:
            self._make_room()
        self.values[self.length] = kept
        self.usable[self.length] = not (hole or flagged)
        self.length += 1
        self.end += 1
        self._after_hole = hole
        if self.end % 6 == 0:
            self._median = None
        return kept

    def _drop_partial(self) -> None:
        """The bucket in which the hole began."""
        if self.length and self.usable[self.length - 1]:
            index = self.length - 1
            if self.values[index] < PARTIAL_SHARE * self.median():
                self.usable[index] = False
                self.values[index] = self.values[index - 1] if index else self.values[index]

    def _fill(self) -> float:
        found = float(self.profile(np.array([self.end], dtype=np.int64))[0]) if self.length else 0.0
        if np.isfinite(found):
            return found
        return float(self.values[self.length - 1]) if self.length else 0.0

    def _make_room(self) -> None:
        begin = self.length - self.kept
        self.values[: self.kept] = self.values[begin : self.length].copy()
        self.usable[: self.kept] = self.usable[begin : self.length].copy()
        self.length = self.kept

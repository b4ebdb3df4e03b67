"""Buckets of time, and which buckets are the same time of day.

A bucket is numbered ``floor(epoch seconds / step)``. Time of day is in the tenant's zone, by its own clock: on a day of
23 or 25 hours, nine o'clock is still compared with nine o'clock.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
DAY_SECONDS: Final = 86_400
_OFFSET_SECONDS: Final = 900
"""UTC offsets change at multiples of this, everywhere on earth."""


class Calendar:
    """Buckets of ``step_seconds`` (a divisor of a day) in a time zone; UTC if none."""

    def __init__(self, step_seconds: int, zone: ZoneInfo | None = None) -> None:
        if step_seconds < 1 or DAY_SECONDS % step_seconds:
            raise ValueError(f"a step of {step_seconds} s does not divide a day; use 60, 300, 600 or 1800")
        self.step_seconds = step_seconds
        self.per_day = DAY_SECONDS // step_seconds
        self._zone = zone
        self._offsets: dict[int, int] = {}

    def buckets(self, seconds: float) -> int:
        """How many buckets cover ``seconds``; at least one."""
        return max(1, -(-int(seconds) // self.step_seconds))

    def bucket_at(self, epoch_seconds: float) -> int:
        """The bucket that holds a moment."""
        return int(epoch_seconds // self.step_seconds)

    def days_before(self, buckets: Ints, days: Sequence[int]) -> Ints:
        """Shape (days, buckets): the bucket at the same local time of day, so many days earlier."""
        back = np.asarray(days, dtype=np.int64)[:, None] * self.per_day
        naive: Ints = buckets[None, :] - back
        if self._zone is None or self._same_offset(int(naive.min()), int(buckets.max())):
            return naive
        shift = np.array([self._offset(int(bucket)) for bucket in buckets], dtype=np.int64)[None, :]
        earlier = np.array([[self._offset(int(bucket)) for bucket in row] for row in naive], dtype=np.int64)
        return naive + shift - earlier

    def phase(self, bucket: int) -> int:
        """Number of the bucket within its local day."""
        return (bucket + self._offset(bucket)) % self.per_day

    def phases(self, buckets: Ints) -> Ints:
        """``phase`` of each."""
        if self._zone is None:
            return buckets % self.per_day
        return np.array([self.phase(int(bucket)) for bucket in buckets], dtype=np.int64)

    def week_phases(self, buckets: Ints) -> Ints:
        """Number of each bucket within its local week."""
        if self._zone is None:
            return buckets % (7 * self.per_day)
        local = np.array([int(bucket) + self._offset(int(bucket)) for bucket in buckets], dtype=np.int64)
        return local % (7 * self.per_day)

    def _same_offset(self, first: int, last: int) -> bool:
        """No clock change between the two, looked at once a day (none is taken back within one)."""
        days = range(first, last + self.per_day, self.per_day)
        return len({self._offset(bucket) for bucket in days}) == 1

    def _offset(self, bucket: int) -> int:
        """Local time minus UTC, in buckets."""
        if self._zone is None:
            return 0
        key = bucket * self.step_seconds // _OFFSET_SECONDS
        found = self._offsets.get(key)
        if found is None:
            if len(self._offsets) > 20_000:
                self._offsets.clear()
            moment = datetime.fromtimestamp(key * _OFFSET_SECONDS, UTC).astimezone(self._zone)
            offset = moment.utcoffset()
            found = 0 if offset is None else int(offset.total_seconds()) // self.step_seconds
            self._offsets[key] = found
        return found

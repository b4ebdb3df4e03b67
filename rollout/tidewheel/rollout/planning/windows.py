"""Change windows: the hours in which traffic may be given to a new version. Going back is never held up by them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import IntEnum
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidewheel.rollout.errors import SettingsError


class Weekday(IntEnum):
    """As ``datetime.weekday`` counts."""

    MON = 0
    TUE = 1
    WED = 2
    THU = 3
    FRI = 4
    SAT = 5
    SUN = 6


_DAYS_AHEAD: Final = 8
EVERY_DAY: Final = frozenset(Weekday)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeWindow:
    """Open from ``start`` until ``end`` on the wall clock of ``zone``, on ``days`` (of the start).

    An end at or before the start is the next day's. On the day a clock jumps, a start inside the gap is when the gap
    ends, and of an hour that comes twice the start is its first and the end its second.
    """

    start: time
    end: time
    zone: tzinfo = UTC
    days: frozenset[Weekday] = EVERY_DAY

    def __post_init__(self) -> None:
        if not self.days:
            raise SettingsError("changeWindows: a window without days never opens; name at least one")

    def span_of(self, day: datetime) -> tuple[datetime, datetime]:
        """When the window that starts on the local day of ``day`` opens and closes, in UTC."""
        local = day.astimezone(self.zone).date()
        closes_on = local if self.end > self.start else local + timedelta(days=1)
        opens = datetime.combine(local, self.start, self.zone)
        closes = datetime.combine(closes_on, self.end, self.zone).replace(fold=1)
        return opens.astimezone(UTC), closes.astimezone(UTC)


def change_window(*, start: str, end: str, time_zone: str = "UTC", days: Sequence[str] = ()) -> ChangeWindow:
    """From what a rule says: ``09:00``, ``17:30``, ``Europe/Berlin``, ``["Mon", "Tue"]``. Raises SettingsError."""
    try:
        zone: tzinfo = UTC if time_zone == "UTC" else ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise SettingsError(
            f"changeWindows.timeZone {time_zone!r} is not known here; use an IANA name such as Europe/Berlin"
        ) from error
    try:
        chosen = frozenset(Weekday[day[:3].upper()] for day in days) or EVERY_DAY
        return ChangeWindow(start=time.fromisoformat(start), end=time.fromisoformat(end), zone=zone, days=chosen)
    except (KeyError, ValueError) as error:
        raise SettingsError(
            f"changeWindows {start}-{end} on {list(days)}: times are HH:MM, days Mon Tue Wed Thu Fri Sat Sun"
        ) from error


def opens_at(windows: Sequence[ChangeWindow], now: datetime) -> datetime | None:
    """When traffic may move: ``now`` if it may now, or if there are no windows; None if not within a week."""
    if not windows:
        return now
    openings = []
    for window in windows:
        for ahead in range(-1, _DAYS_AHEAD):
            opens, closes = window.span_of(now + timedelta(days=ahead))
            if Weekday(opens.astimezone(window.zone).weekday()) not in window.days or closes <= now:
                continue
            if opens <= now:
                return now
            openings.append(opens)
    return min(openings, default=None)

"""What the history keeps: holes are not zeros, marks are not evidence, time of day is local."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tidewheel.autoscaler.forecast.calendar import Calendar
from tidewheel.autoscaler.forecast.history import History

HOUR = 3600


def _hourly(*values: float | None) -> History:
    history = History(Calendar(HOUR))
    for bucket, value in enumerate(values):
        history.append(bucket, value)
    return history


def test_a_hole_is_filled_with_the_same_time_yesterday_and_is_no_evidence() -> None:
    history = _hourly(*range(100, 124), None)
    assert history.values[24] == 100
    assert not history.usable[24]


def test_buckets_that_nobody_gave_are_holes() -> None:
    history = _hourly(*range(100, 124))
    history.append(27, 500.0)
    values, usable = history.at(np.array([24, 25, 26, 27]))
    assert values.tolist() == [100, 101, 102, 500]
    assert usable.tolist() == [False, False, False, True]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_what_is_no_demand_is_a_hole(value: float) -> None:
    history = _hourly(5.0, value)
    assert not history.usable[1]
    assert history.values[1] == 5.0


def test_the_partial_buckets_beside_a_hole_are_no_evidence() -> None:
    history = _hourly(*[100.0] * 10, 2.0, None, 3.0, 100.0)
    assert history.usable[:14].tolist() == [True] * 10 + [False, False, False, True]


def test_a_true_zero_stays_a_zero() -> None:
    history = _hourly(10.0, 0.0, 0.0)
    assert history.usable[:3].all()
    assert history.values[2] == 0


def test_flagged_spans_stay_out_of_the_profile() -> None:
    history = History(Calendar(HOUR))
    for bucket in range(72):
        history.append(bucket, 900.0 if 24 <= bucket < 48 else 10.0, flagged=24 <= bucket < 48)
    assert history.profile(np.array([72, 73])).tolist() == [10.0, 10.0]


def test_a_span_flagged_afterwards_leaves_the_profile() -> None:
    history = _hourly(*[10.0] * 24, *[900.0] * 24)
    history.flag(24, 47)
    assert history.profile(np.array([48])).tolist() == [10.0]


def test_old_buckets_go_and_the_rest_stay_where_they_were() -> None:
    history = History(Calendar(HOUR), kept_days=2)
    for bucket in range(200):
        history.append(bucket, float(bucket))
    values, usable = history.at(np.array([100, 198, 199]))
    assert usable.tolist() == [False, True, True]
    assert values[1:].tolist() == [198, 199]


@pytest.mark.parametrize(
    ("after_change", "hours_before"),
    [
        pytest.param(datetime(2026, 3, 29, 9, tzinfo=UTC), 23, id="spring: a day of 23 hours"),
        pytest.param(datetime(2026, 10, 25, 9, tzinfo=UTC), 25, id="autumn: a day of 25 hours"),
        pytest.param(datetime(2026, 6, 10, 9, tzinfo=UTC), 24, id="an ordinary day"),
    ],
)
def test_the_same_time_of_day_is_by_the_local_clock(after_change: datetime, hours_before: int) -> None:
    calendar = Calendar(HOUR, ZoneInfo("Europe/Berlin"))
    bucket = calendar.bucket_at(after_change.timestamp())
    yesterday = int(calendar.days_before(np.array([bucket]), [1])[0, 0])
    assert bucket - yesterday == hours_before
    assert calendar.phase(bucket) == calendar.phase(yesterday)


def test_without_a_zone_a_day_is_a_day() -> None:
    assert Calendar(HOUR).days_before(np.array([50]), [1, 2]).tolist() == [[26], [2]]

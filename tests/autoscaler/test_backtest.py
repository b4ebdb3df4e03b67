"""The replay is honest: nothing knows the future, capacity comes a lead after its order."""

import numpy as np
import pytest
from tests.autoscaler.waves import wave

from tidewheel.autoscaler.backtest.policies import DemandHpa, Forecasts, Oracle, Ours
from tidewheel.autoscaler.backtest.replay import backtest, ready_capacity, replay, score
from tidewheel.autoscaler.backtest.series import Series, checked_series
from tidewheel.autoscaler.errors import SeriesError
from tidewheel.autoscaler.forecast.calendar import Calendar

STEP = 1800


def _series(values: np.ndarray, name: str = "test") -> Series:
    return Series(name=name, step_seconds=STEP, values=np.asarray(values, dtype=np.float64))


def test_an_order_serves_one_lead_after_the_end_of_its_bucket_and_a_cut_at_once() -> None:
    orders = np.array([1.0, 5, 5, 5, 5, 2, 5, 5])
    assert ready_capacity(orders, 2).tolist() == [1, 1, 1, 1, 5, 5, 2, 2]


def test_the_future_changes_no_order_of_the_past() -> None:
    values = wave(8, step_seconds=STEP, noise=0.2)
    other = values.copy()
    other[300:] *= 3
    first, second = (
        replay(Ours(Calendar(STEP), Forecasts(Calendar(STEP), 3600)), _series(each)) for each in (values, other)
    )
    assert first[:300].tolist() == second[:300].tolist()


def test_on_a_wave_with_noise_ours_costs_less_than_the_tuned_hpa_and_the_oracle_least() -> None:
    series = checked_series(_series(wave(15, step_seconds=STEP, noise=0.1))).scaled(40)
    found = {entry.policy: entry for entry in backtest(series, lead_seconds=3600)}
    ours, hpa, oracle = found["ours"], found["hpa_tuned"], found["oracle"]
    assert hpa.missed_percent <= ours.missed_percent + 1e-9
    assert ours.gpu_hours < 0.95 * hpa.gpu_hours
    assert ours.short_percent <= 2.0
    assert oracle.missed_percent == 0
    assert oracle.gpu_hours < ours.gpu_hours


def test_holes_are_not_scored_and_do_not_shrink_the_order() -> None:
    values = wave(15, step_seconds=STEP, noise=0.0)
    values[700:706] = np.nan
    series = _series(values).scaled(40)
    orders = replay(DemandHpa(Calendar(STEP), utilisation=0.5), series)
    assert (orders[700:706] == orders[699]).all()
    assert np.isfinite(score("hpa", orders, series, 1).missed_percent)


def test_the_oracle_is_never_short() -> None:
    series = _series(wave(15, step_seconds=STEP, noise=0.3)).scaled(8)
    orders = replay(Oracle(Calendar(STEP), 3600, series), series)
    assert score("oracle", orders, series, 2).short_percent == 0


@pytest.mark.parametrize(
    ("values", "step", "words"),
    [
        (np.ones(500), 7200, "step of 7200 s"),
        (np.ones(10), 1800, "too few"),
        (-np.ones(100), 1800, "never negative"),
        (np.zeros(100), 1800, "zero nearly always"),
        (np.full(100, np.nan), 1800, "too few"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_the_reason(values: np.ndarray, step: int, words: str) -> None:
    with pytest.raises(SeriesError, match=words):
        checked_series(Series(name="odd", step_seconds=step, values=values.astype(np.float64)))

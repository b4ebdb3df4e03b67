"""The combined forecast and its margin."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.autoscaler.waves import wave

from tidewheel.autoscaler.forecast.calendar import Calendar
from tidewheel.autoscaler.forecast.combination import Forecast, Forecaster

STEP = 1800


def _wave(days: float, **settings: float) -> NDArray[np.float64]:
    return wave(days, step_seconds=STEP, **settings)  # type: ignore[arg-type]


def _run(values: list[float | None], *, lead: int = 3600, **settings: object) -> Forecaster:
    forecaster = Forecaster(Calendar(STEP), lead_seconds=lead, **settings)  # type: ignore[arg-type]
    for bucket, value in enumerate(values):
        forecaster.observe(bucket, value)
        forecaster.forecast()
    return forecaster


def _heaviest(forecast: Forecast) -> str:
    return forecast.weights[0][0]


def test_on_a_daily_wave_the_forecast_sees_the_morning_coming() -> None:
    values = _wave(5.25, noise=0.02)
    forecast = _run(values.tolist(), lead=7200).forecast()
    assert values[-1] < 28
    assert forecast.at_lead == pytest.approx(_wave(5.5, noise=0)[values.size + 4], rel=0.08)
    assert "last" not in _heaviest(forecast)


def test_without_a_season_in_the_history_nothing_seasonal_is_claimed() -> None:
    forecast = _run(_wave(0.9).tolist()).forecast()
    assert {name for name, _ in forecast.weights} <= {"last 10 min", "last 30 min", "last 60 min"}


def test_weeks_are_not_claimed_before_they_are_known() -> None:
    names = {name for name, _ in _run(_wave(6).tolist()).forecast().weights}
    assert not any("weeks" in name for name in names)


def test_the_last_value_always_takes_part() -> None:
    names = {name for name, _ in _run(_wave(4).tolist()).forecast().weights}
    assert "last 30 min" in names


def test_seasons_that_are_switched_off_do_not_take_part() -> None:
    names = {name for name, _ in _run(_wave(4).tolist(), seasons=()).forecast().weights}
    assert names <= {"last 10 min", "last 30 min", "last 60 min"}


def test_the_margin_covers_what_it_claims() -> None:
    values = _wave(14, noise=0.15, seed=3)
    forecaster = Forecaster(Calendar(STEP), lead_seconds=3600)
    safe: dict[int, float] = {}
    for bucket, value in enumerate(values.tolist()):
        forecaster.observe(bucket, value)
        forecast = forecaster.forecast()
        safe[bucket + 1 + forecast.lead_buckets] = forecast.at_lead * forecast.margin.factor
    judged = [value <= safe[bucket] for bucket, value in enumerate(values.tolist()) if bucket >= 4 * 48]
    assert 0.98 <= float(np.mean(judged)) <= 0.999


def test_the_margin_is_a_fifth_until_there_are_errors_to_take_it_from() -> None:
    margin = _run(_wave(1.5).tolist()).forecast().margin
    assert margin.factor == 1.2
    assert not margin.calibrated


def test_a_noisier_service_gets_a_larger_margin() -> None:
    calm = _run(_wave(7, noise=0.02).tolist()).forecast().margin.factor
    rough = _run(_wave(7, noise=0.3).tolist()).forecast().margin.factor
    assert calm < 1.2 < 1.5 < rough


def test_identical_inputs_give_the_identical_forecast() -> None:
    values = _wave(3).tolist()
    first, second = _run(values).forecast(), _run(values).forecast()
    assert first.values.tolist() == second.values.tolist()
    assert (first.margin, first.weights) == (second.margin, second.weights)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([7.0] * 150, id="constant"),
        pytest.param([0.0] * 150, id="zero"),
        pytest.param([3.0], id="a single sample"),
        pytest.param([float("nan")] * 100, id="nothing but NaN"),
        pytest.param([0.0] * 120 + [1e9, 0.0, 0.0], id="one monstrous sample"),
        pytest.param([None, None, 5.0], id="holes first"),
    ],
)
def test_odd_histories_give_a_finite_forecast(values: list[float | None]) -> None:
    """ai-dynamo/dynamo#1420, #2557."""
    forecast = _run(values).forecast()
    assert np.isfinite(forecast.values).all()
    assert (forecast.values >= 0).all()
    assert 1 <= forecast.margin.factor <= 4


def test_a_constant_demand_is_forecast_as_it_is() -> None:
    forecast = _run([7.0] * 150).forecast()
    assert forecast.at_lead == pytest.approx(7.0, rel=1e-3)
    assert forecast.margin.factor == pytest.approx(1.0, abs=1e-3)


def test_a_hole_of_an_hour_does_not_pull_the_forecast_down() -> None:
    """kedacore/keda#3065: the series vanish at the peak."""
    values: list[float | None] = list(_wave(4.5, noise=0.02).tolist())
    before = _run(values).forecast().peak
    after = _run([*values, *[None] * 2]).forecast().peak
    assert after > 0.85 * before


def test_history_learnt_at_once_gives_nearly_the_forecast_of_history_seen_bucket_by_bucket() -> None:
    values = _wave(9, noise=0.05).tolist()
    slow, quick = _run(values), Forecaster(Calendar(STEP), lead_seconds=3600)
    quick.learn(0, values)
    seen, learnt = slow.forecast(), quick.forecast()
    assert learnt.at_lead == pytest.approx(seen.at_lead, rel=0.03)
    assert learnt.margin.factor == pytest.approx(seen.margin.factor, rel=0.03)
    assert learnt.margin.calibrated

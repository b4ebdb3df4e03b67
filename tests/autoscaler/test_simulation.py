"""The faults that a day may bring, played through the planner that the operator runs.

One wave of 10,000 to 40,000 tok/s a day, replicas of 1,000 tok/s that take about five minutes to start.
"""

import math
from dataclasses import replace
from typing import Final

import pytest

from tidewheel.autoscaler.outlook import OutlookSettings
from tidewheel.autoscaler.simulation.loop import Record, simulate
from tidewheel.autoscaler.simulation.scenario import HOUR, Fault, FaultKind, Scenario
from tidewheel.autoscaler.version_plan import Bounds

STEP: Final = 1200
NEED_AT_NOON: Final = 40


def _demand(at: float) -> float:
    """Trough at midnight, peak at noon; a ripple that no forecast knows."""
    ripple = 1 + 0.03 * math.sin(at / 613) * math.sin(at / 97)
    return (25_000 - 15_000 * math.cos(2 * math.pi * at / 86_400)) * ripple


CALM = Scenario(
    demand=_demand,
    bounds=Bounds(maximum=100, spare=1),
    history_days=4,
    seconds=14 * HOUR,
    tick_seconds=60,
    outlook=OutlookSettings(step_seconds=STEP),
)


def _play(*faults: Fault, **changes: object) -> Record:
    return simulate(replace(CALM, faults=faults, **changes))  # type: ignore[arg-type]


def _lowest_order(record: Record, start: float, end: float) -> int:
    return min(moment.ordered for moment in record.between(start, end))


def _highest_order(record: Record, start: float, end: float) -> int:
    return max(moment.ordered for moment in record.between(start, end))


@pytest.fixture(scope="module")
def calm() -> Record:
    return _play()


def test_replicas_are_ready_before_the_ramp_needs_them(calm: Record) -> None:
    assert calm.missed_share < 0.001
    assert max(moment.rung for moment in calm.moments) == 0
    perfect = sum(math.ceil(moment.demand / 1_000) for moment in calm.moments) / 60
    assert calm.replica_hours < 1.5 * perfect


def test_a_day_is_the_same_bit_for_bit(calm: Record) -> None:
    assert _play().moments == calm.moments


def test_prometheus_gone_for_an_hour_at_the_morning_ramp_shrinks_nothing_and_the_forecast_goes_on(
    calm: Record,
) -> None:
    """kedacore/keda#3065, ai-dynamo/dynamo#14575."""
    record = _play(Fault(kind=FaultKind.METRICS_GONE, start=7 * HOUR, end=8 * HOUR))
    during = record.between(7 * HOUR, 8 * HOUR)
    assert all(moment.blind for moment in during)
    orders = [moment.ordered for moment in during]
    assert orders == sorted(orders)
    assert orders[-1] > orders[0]
    assert record.missed_share < 0.01


def test_half_the_gateways_unscraped_is_not_half_the_demand() -> None:
    record = _play(Fault(kind=FaultKind.GATEWAYS_UNSCRAPED, start=12 * HOUR, end=12.15 * HOUR, size=0.5))
    before = record.between(11.9 * HOUR, 12 * HOUR)[-1].ordered
    assert _lowest_order(record, 12 * HOUR, 12.3 * HOUR) >= before - 1
    assert record.missed_share < 0.001


def test_a_counter_reset_changes_the_order_by_nothing_that_matters() -> None:
    record = _play(Fault(kind=FaultKind.COUNTER_RESET, start=12 * HOUR, end=12 * HOUR + 120))
    before = record.between(11.9 * HOUR, 12 * HOUR)[-1].ordered
    assert _lowest_order(record, 12 * HOUR, 12.5 * HOUR) >= before - 4


def test_a_flood_of_retries_raises_the_order_within_its_bounds_and_leaves_no_trace() -> None:
    record = _play(Fault(kind=FaultKind.RETRIES, start=3 * HOUR, end=3.3 * HOUR, size=3), seconds=6 * HOUR)
    assert _highest_order(record, 3 * HOUR, 3.5 * HOUR) <= 100
    calm_before = record.between(2.9 * HOUR, 3 * HOUR)[-1].ordered
    assert record.moments[-1].ordered < 2 * calm_before + 10


def test_a_marked_load_test_stays_out_of_the_forecast_of_the_next_hours() -> None:
    kinds = (FaultKind.MARKED_LOAD_TEST, FaultKind.LOAD_TEST)
    marked, unmarked = (_play(Fault(kind=kind, start=2 * HOUR, end=4 * HOUR, size=2.5)) for kind in kinds)
    assert max(m.ordered for m in marked.between(2.5 * HOUR, 4 * HOUR)) > 30
    assert marked.missed_share < 0.02
    assert marked.between(6 * HOUR, 7 * HOUR)[-1].ordered <= unmarked.between(6 * HOUR, 7 * HOUR)[-1].ordered


def test_a_store_three_times_slower_lengthens_the_lead_by_itself() -> None:
    record = _play(Fault(kind=FaultKind.SLOW_STORE, start=4 * HOUR, end=14 * HOUR, size=3))
    assert record.leads
    assert max(record.leads) > 1.8 * 300
    assert record.missed_share < 0.02


def test_stuck_replicas_are_replaced_once_and_nothing_is_ordered_twice() -> None:
    record = _play(Fault(kind=FaultKind.STUCK_PENDING, start=8 * HOUR, end=8.5 * HOUR))
    assert _highest_order(record, 8 * HOUR, 14 * HOUR) <= NEED_AT_NOON * 1.5
    assert record.missed_share < 0.02


def test_a_quota_cut_is_published_as_a_shortfall_and_starts_the_ladder() -> None:
    """LLMKube#1311, kubernetes-sigs/kueue#2677."""
    record = _play(Fault(kind=FaultKind.QUOTA, start=6 * HOUR, end=14 * HOUR, size=30))
    noon = record.between(11.5 * HOUR, 12.5 * HOUR)
    assert max(moment.ready for moment in noon) < NEED_AT_NOON
    assert all(moment.shortfall >= 3 for moment in noon)
    assert min(moment.rung for moment in noon) >= 1
    first_rung = next(moment.at for moment in record.moments if moment.rung)
    first_missed = next(moment.at for moment in record.moments if moment.served < moment.demand)
    assert first_rung < first_missed


def test_a_budget_that_is_reached_climbs_the_ladder_and_comes_down_after() -> None:
    record = _play(bounds=Bounds(maximum=100, spare=1, budget=35), seconds=22 * HOUR)
    assert max(moment.ordered for moment in record.moments) == 35
    assert max(moment.rung for moment in record.between(11 * HOUR, 13 * HOUR)) >= 1
    assert record.moments[-1].rung == 0


def test_a_pool_that_goes_is_ordered_anew_at_once() -> None:
    record = _play(Fault(kind=FaultKind.POOL_GONE, start=10 * HOUR, end=10 * HOUR + 60, size=0.3))
    before = record.between(9.9 * HOUR, 10 * HOUR)[-1].ordered
    after = record.between(10 * HOUR, 10 * HOUR + 180)
    assert min(moment.ready for moment in after) < before
    assert after[-1].ordered >= before
    assert record.between(10.4 * HOUR, 10.5 * HOUR)[-1].ready >= before - 1
    assert max(moment.rung for moment in record.between(10 * HOUR, 10.5 * HOUR)) >= 1


def test_spot_reclaimed_in_the_peak_moves_streams_and_cuts_none() -> None:
    record = _play(Fault(kind=FaultKind.SPOT_RECLAIMED, start=12 * HOUR, end=12 * HOUR + 60, size=0.25))
    assert record.streams_cut == 0
    assert record.streams_moved >= 5
    assert record.missed_share < 0.02


def test_an_eight_minute_start_and_a_doubling_never_order_above_need() -> None:
    """vllm-project/aibrix#2670, llm-d WVA#549: pending replicas are counted, never ordered twice."""

    def step(at: float) -> float:
        return 20_000 if at > 2 * HOUR else 10_000

    record = _play(demand=step, start_seconds=480, seconds=4 * HOUR, history_days=2)
    need = max(moment.need for moment in record.moments) / 1_000
    assert max(moment.ordered for moment in record.moments) <= math.ceil(need) + 1


def test_noise_around_a_level_changes_the_order_less_than_twice_an_hour() -> None:
    """kubernetes/kubernetes#78988, #39090."""

    def noisy(at: float) -> float:
        return 20_000 * (1 + 0.02 * math.sin(at / 7) + 0.02 * math.sin(at / 41))

    record = _play(demand=noisy, seconds=8 * HOUR, history_days=6)
    assert record.changes < 16


def test_demand_that_stops_reaches_the_minimum_in_the_hold_time() -> None:
    """ai-dynamo/dynamo#6985: NaN is not skip, and zero is zero."""

    def stops(at: float) -> float:
        return 0.0 if at > 2 * HOUR else 20_000

    record = _play(demand=stops, seconds=5 * HOUR, history_days=1, outlook=OutlookSettings(step_seconds=600))
    assert record.moments[-1].ordered <= 2


def test_a_version_without_history_is_safe_and_claims_nothing() -> None:
    record = _play(history_days=0, seconds=3 * HOUR)
    assert record.missed_share < 0.05


def test_five_times_the_demand_that_nobody_forecast_starts_orders_and_ladder_at_once() -> None:
    record = _play(Fault(kind=FaultKind.LOAD_TEST, start=2 * HOUR, end=4 * HOUR, size=5), seconds=6 * HOUR)
    after = record.between(2 * HOUR, 2 * HOUR + 180)
    assert after[-1].ordered >= 50
    assert max(moment.rung for moment in after) == 5
    recovered = next(
        moment.at for moment in record.moments if moment.at > 2 * HOUR + 60 and moment.served == moment.demand
    )
    assert recovered < 2 * HOUR + 25 * 60
    assert record.moments[-1].rung == 0

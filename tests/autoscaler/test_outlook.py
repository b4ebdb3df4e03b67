"""From demand to need to replicas: events, correction, blindness, modes, shares."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.autoscaler.capacity import CapacitySource, ReplicaCapacity
from tidewheel.autoscaler.errors import EventError
from tidewheel.autoscaler.events import DeclaredEvent, checked_against
from tidewheel.autoscaler.outlook import DemandOutlook, OutlookSettings
from tidewheel.autoscaler.replicas import VersionNeeds, share_size, wanted_replicas
from tidewheel.autoscaler.units import Demand, Unit
from tidewheel.autoscaler.version_plan import Bounds, LoadPlan, Mode, plan_load

STEP = 300
CAPACITY = ReplicaCapacity(prefill=1_000, decode=100, kv_tokens=16_000, max_streams=50, source=CapacitySource.MEASURED)


def _demand(decode: float) -> Demand:
    return Demand(prefill=2 * decode, decode=decode, kv_blocks=decode)


def _level(decode: float, *, buckets: int = 24, **settings: object) -> DemandOutlook:
    outlook = DemandOutlook(OutlookSettings(step_seconds=STEP, **settings), lead_seconds=300)  # type: ignore[arg-type]
    for bucket in range(buckets):
        outlook.observe(bucket, _demand(decode))
    return outlook


NOW = 24.0 * STEP


def test_need_is_the_forecast_with_margin_and_replicas_the_most_that_any_unit_asks_for() -> None:
    outlook = _level(500).look(now=NOW, present=_demand(500))
    plan = plan_load(outlook, CAPACITY, Bounds(maximum=50, spare=1))
    assert outlook.of(Unit.DECODE).need == pytest.approx(600)
    assert plan.binding is Unit.DECODE
    assert plan.whole == pytest.approx(6.0)
    assert plan.size(10_000, present=3) == 7
    assert plan.size(2_500, present=0) == 3


def test_a_fixed_headroom_replaces_the_margin() -> None:
    outlook = _level(500, headroom=0.5).look(now=NOW, present=_demand(500))
    assert outlook.of(Unit.DECODE).need == pytest.approx(750)


def test_present_demand_is_the_floor_and_lifts_the_future() -> None:
    outlook = _level(500).look(now=NOW, present=_demand(2_500))
    decode = outlook.of(Unit.DECODE)
    assert decode.need >= 2_500
    assert decode.correction == pytest.approx(4.0)


def test_twice_the_demand_that_nobody_forecast_is_a_spike() -> None:
    demand = _level(500)
    assert not demand.look(now=NOW, present=_demand(500)).spike
    assert demand.look(now=NOW + 60, present=_demand(1_500)).spike


def test_unknown_demand_is_blind_and_shrinks_nothing() -> None:
    demand = _level(500)
    demand.look(now=NOW, present=_demand(500))
    outlook = demand.look(now=NOW + 120, present=None)
    assert outlook.blind_seconds == pytest.approx(120)
    plan = plan_load(outlook, CAPACITY, Bounds(maximum=50))
    assert plan.size(10_000, present=20) == 20
    assert plan.size(10_000, present=2) == 7


def test_down_comes_after_the_hold() -> None:
    demand = _level(500)
    for second in range(0, 1_200, 60):
        need = demand.look(now=NOW + second, present=_demand(2_000 if second == 0 else 500)).of(Unit.DECODE).need
        assert (need >= 2_000) == (second <= 600)


EVENT = DeclaredEvent(name="launch", start=NOW + 300, end=NOW + 3_600, multiplier=5.0, ramp_seconds=300)


def test_a_declared_event_multiplies_the_forecast_ahead_of_its_start_and_ends_by_itself() -> None:
    outlook = _level(100, events=(EVENT,)).look(now=NOW, present=_demand(100))
    assert outlook.of(Unit.DECODE).peak == pytest.approx(500)
    assert outlook.events == ("launch",)
    assert EVENT.factor(NOW + 10_000) == 1.0
    assert EVENT.is_over(NOW + 3_900)
    assert replace(EVENT, confidence=0.5).factor(NOW + 600) == pytest.approx(3.0)


def test_an_event_that_does_not_come_loses_its_confidence() -> None:
    late = NOW + 300 + 600 + 300
    assert checked_against(EVENT, now=late, seen_ratio=1.0, patience_seconds=600).confidence == pytest.approx(0.5)
    assert checked_against(EVENT, now=late, seen_ratio=5.0, patience_seconds=600) is EVENT
    gone = checked_against(EVENT, now=late + 3_600, seen_ratio=1.0, patience_seconds=600)
    assert gone.factor(late + 100) == 1.0


@pytest.mark.parametrize(
    ("changes", "words"), [({"end": 0.0}, "end must be after start"), ({"multiplier": 0.0}, "multiplier")]
)
def test_an_event_that_contradicts_itself_is_refused_by_name(changes: dict[str, float], words: str) -> None:
    with pytest.raises(EventError, match=f"launch.*{words}"):
        replace(EVENT, **changes)


def _plan(whole: float = 6.0, *, blind: bool = False, **bounds: object) -> LoadPlan:
    settings: dict[str, object] = {"maximum": 50, "spare": 1} | bounds
    return LoadPlan(
        whole=whole,
        present_whole=whole,
        expected_whole=whole,
        binding=Unit.DECODE,
        bounds=Bounds(**settings),  # type: ignore[arg-type]
        blind=blind,
    )


@pytest.mark.parametrize(
    ("mode", "present", "size"),
    [
        (Mode.OBSERVE, 3, 3),
        (Mode.ADVISE, 3, 3),
        (Mode.FLOOR, 3, 7),
        (Mode.FLOOR, 20, 20),
        (Mode.FULL, 20, 7),
    ],
)
def test_modes(mode: Mode, present: int, size: int) -> None:
    assert _plan(mode=mode).size(10_000, present=present) == size


def test_a_ceiling_is_never_silent() -> None:
    plan = _plan(40.0, maximum=100, budget=30)
    assert plan.size(10_000, present=0) == 30
    assert plan.shortfall(10_000) == 11


def test_zero_only_where_allowed() -> None:
    assert _plan(0.0).size(10_000, present=0) == 1
    assert _plan(0.0, minimum=3).size(10_000, present=0) == 3
    assert _plan(0.0, scale_to_zero=True).size(10_000, present=4) == 0
    assert _plan(0.01, scale_to_zero=True).size(10_000, present=0) == 2


def test_both_arms_of_a_rollout_are_planned_apart() -> None:
    base = VersionNeeds(min_replicas=1, max_replicas=50, weight=9_900, named=True, present=7, load=_plan())
    canary = VersionNeeds(
        min_replicas=1, max_replicas=50, weight=100, growing_to=2_500, named=True, load=_plan(9.0), move_pending=True
    )
    assert wanted_replicas(base).count == 7
    assert wanted_replicas(canary).count == 4  # a quarter of nine, and a spare
    assert share_size(canary, 100) == 2


def test_the_base_keeps_what_it_has_while_traffic_is_about_to_move_and_what_is_kept_warm_stays() -> None:
    moving = VersionNeeds(weight=5_000, present=12, named=True, load=_plan(), move_pending=True)
    warm = VersionNeeds(warm_weight=10_000, present=9, load=_plan())
    assert wanted_replicas(moving).count == 12
    assert wanted_replicas(warm).count == 9


@given(
    whole=st.floats(0, 1e4),
    share=st.integers(0, 10_000),
    present=st.integers(0, 500),
    minimum=st.integers(0, 20),
    extra=st.integers(0, 200),
    blind=st.booleans(),
)
def test_sizes_stay_within_bounds_and_a_blind_one_never_shrinks(
    whole: float, share: int, present: int, minimum: int, extra: int, blind: bool
) -> None:
    maximum = minimum + extra + 1
    size = _plan(whole, blind=blind, minimum=minimum, maximum=maximum).size(share, present=present)
    assert minimum <= size <= maximum
    if blind:
        assert size >= min(present, maximum)

"""The ladder: one rung per period on a forecast, jumps only when measured, down in reverse and slower."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.autoscaler.ladder import LadderSettings, LadderState, LadderStep, Rung, climb

SETTINGS = LadderSettings(period_seconds=60, minimum_seconds=180)


def _look(state: LadderState, now: float, *, ahead: float = 0.5, present: float = 0.5) -> LadderStep:
    return climb(
        state,
        now=now,
        forecast_need=100 * ahead,
        forecast_supply=100,
        present_need=100 * present,
        present_supply=100,
        settings=SETTINGS,
    )


def test_a_forecast_shortage_climbs_one_rung_per_period_before_anything_saturates() -> None:
    state, rungs = LadderState(), []
    for now in range(1000, 1300, 30):
        state = _look(state, now, ahead=1.6, present=0.9).state
        rungs.append(int(state.rung))
    assert rungs == [1, 1, 2, 2, 3, 3, 4, 4, 4, 4]


def test_measured_saturation_jumps() -> None:
    step = _look(LadderState(), 1000, present=2.5)
    assert step.state.rung is Rung.SHED
    assert "250%" in step.message


def test_it_goes_down_one_by_one_after_the_minimum_time() -> None:
    state, downs = LadderState(rung=Rung.SHED, since=0), []
    for now in range(0, 2000, 20):
        step = _look(state, now)
        if step.changed:
            downs.append((now, int(step.state.rung)))
        state = step.state
    assert downs == [(180, 4), (360, 3), (540, 2), (720, 1), (900, 0)]


def test_between_exit_and_entry_it_stays() -> None:
    state = LadderState(rung=Rung.SHORTEN, since=0)
    assert not _look(state, 10_000, ahead=1.07).changed


def test_no_capacity_at_all_is_the_worst_shortage_and_no_need_is_none() -> None:
    empty = climb(
        LadderState(), now=0, forecast_need=3, forecast_supply=0, present_need=3, present_supply=0, settings=SETTINGS
    )
    idle = climb(
        LadderState(), now=0, forecast_need=0, forecast_supply=0, present_need=0, present_supply=0, settings=SETTINGS
    )
    assert empty.state.rung is Rung.SHED
    assert idle.state.rung is Rung.NONE


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1)), min_size=2, max_size=60))
def test_down_is_never_more_than_one_rung_and_never_sooner_than_the_minimum(
    looks: list[tuple[float, float]],
) -> None:
    state, states = LadderState(), [LadderState()]
    for number, (ahead, present) in enumerate(looks):
        state = _look(state, 30.0 * number, ahead=ahead, present=present).state
        states.append(state)
    for before, after in pairwise(states):
        if after.rung < before.rung:
            assert before.rung - after.rung == 1
            assert after.since - before.since >= SETTINGS.minimum_seconds
        elif after.rung > before.rung:
            assert after.rung - before.rung == 1  # nobody measured saturation here

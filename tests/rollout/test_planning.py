"""What is said before a rollout starts."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from tests.rollout.gateways import P99_22_MS, TPOT_EDGES, spread

from tidewheel.crds.rolloutchoices import OnCapacity
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.machine.policy import RolloutPolicy, Step, planned_steps
from tidewheel.rollout.planning.capacity import PoolFacts, plan_capacity
from tidewheel.rollout.planning.detectability import TrafficFacts, outlook, smallest_ratio
from tidewheel.rollout.planning.windows import change_window, opens_at

POLICY = RolloutPolicy(steps=tuple(map(Step, (100, 500, 2500, 5000, 10_000))))
STEPS = planned_steps({"v42": 10_000}, {"v43": 10_000}, POLICY, base="v42", canary="v43")
TPOT = spread(10_000, median=P99_22_MS, sigma=0.35, edges=TPOT_EDGES)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def plan(rate: float, **options: float) -> tuple[list[float | None], str, tuple[str, ...]]:
    facts = TrafficFacts(requests_per_second=rate, error_rate=0.001, latency={Latency.TPOT: (TPOT_EDGES, TPOT)})
    seen = outlook(STEPS, facts, settings=JudgeSettings(**options), policy=POLICY)  # type: ignore[arg-type]
    return [step.smallest_slowdown[Latency.TPOT] for step in seen.steps], seen.refusal, seen.warnings


@pytest.mark.parametrize(("requests", "ratio"), [(150, 25), (300, 16), (1500, 6), (7500, 2.9), (15_000, 2.3)], ids=str)
def test_the_guides_table_of_detectable_error_rates(requests: float, ratio: float) -> None:
    """Guide 4.6 at base errors 0.1 % and 800:1; ours also pays for unknown noise, so it may be a little larger."""
    seen = smallest_ratio(requests, 0.001, 800)
    assert seen is not None
    assert ratio <= seen <= 1.35 * ratio


def test_more_traffic_and_later_steps_see_smaller_effects() -> None:
    few, many = plan(50)[0], plan(1000)[0]
    assert all(later <= earlier for earlier, later in pairwise(many) if earlier and later)
    assert all(more <= less for more, less in zip(many, few, strict=True) if more and less)
    assert many[0] is not None
    assert many[0] < 1.5, "1.86x of v43 is visible in the 1 % step of the small platform"


def test_a_first_step_that_takes_longer_than_its_bake_is_said() -> None:
    _, refusal, warnings = plan(5)
    assert not refusal
    assert any("step 1 will take longer than its bake" in warning for warning in warnings)
    assert plan(1000)[2] == ()


def test_a_policy_that_can_never_see_its_own_limits_is_refused() -> None:
    _, refusal, _ = plan(0.005)
    assert "no step can see its own limits" in refusal
    assert "judge.mode: observe" in refusal


def test_a_plan_line_is_words() -> None:
    facts = TrafficFacts(requests_per_second=50, error_rate=0.001, latency={Latency.TPOT: (TPOT_EDGES, TPOT)})
    line = outlook(STEPS, facts, settings=JudgeSettings(), policy=POLICY).steps[1].in_words()
    assert line.startswith("step 2 at 5.000%: 1,500 canary requests in 10 min, sees +")
    assert "TPOT 1." in line


def _need(version: str, share: int) -> int:
    return -(-share * 10 // 10_000)


@pytest.mark.parametrize(
    ("free", "mode", "fits", "peak"),
    [
        pytest.param(40, OnCapacity.SURGE, True, 80, id="room for both"),
        pytest.param(39, OnCapacity.SURGE, False, 80, id="one GPU short"),
        pytest.param(4, OnCapacity.REPLACE, True, 44, id="one replica of room is enough to replace"),
        pytest.param(0, OnCapacity.REPLACE, False, 44, id="nothing free at all"),
    ],
)
def test_capacity_is_known_before_the_start(free: int, mode: OnCapacity, fits: bool, peak: int) -> None:
    pool = PoolFacts(gpus_free=free, base_replicas=10, base_gpus=4, canary_replicas=0, canary_gpus=4)
    planned = plan_capacity(STEPS, start={"v42": 10_000}, base="v42", canary="v43", need=_need, pool=pool, mode=mode)
    assert planned.fits is fits, planned.message
    assert planned.peak_gpus == peak
    if not fits and mode is OnCapacity.SURGE:
        assert "onCapacity: Replace" in planned.message
        assert "Free 1 GPUs" in planned.message


@pytest.mark.parametrize(
    ("now", "opening"),
    [
        pytest.param("2026-03-02T10:00:00+01:00", "2026-03-02T10:00:00+01:00", id="open now"),
        pytest.param("2026-03-02T08:59:00+01:00", "2026-03-02T09:00:00+01:00", id="opens soon"),
        pytest.param("2026-03-02T17:00:00+01:00", "2026-03-03T09:00:00+01:00", id="closed at its end"),
        pytest.param("2026-03-06T18:00:00+01:00", "2026-03-09T09:00:00+01:00", id="over the weekend"),
        pytest.param("2026-03-27T18:00:00+01:00", "2026-03-30T09:00:00+02:00", id="summer time begins meanwhile"),
    ],
)
def test_a_change_window_follows_the_wall_clock_of_its_zone(now: str, opening: str) -> None:
    window = change_window(
        start="09:00", end="17:00", time_zone="Europe/Berlin", days=["Mon", "Tue", "Wed", "Thu", "Fri"]
    )
    assert opens_at([window], at(now)) == at(opening)


def test_a_window_over_midnight_belongs_to_the_day_it_starts() -> None:
    window = change_window(start="22:00", end="04:00", time_zone="Europe/Berlin", days=["Fri"])
    assert opens_at([window], at("2026-03-07T03:00:00+01:00")) == at("2026-03-07T03:00:00+01:00")
    assert opens_at([window], at("2026-03-07T05:00:00+01:00")) == at("2026-03-13T22:00:00+01:00")


def test_the_hour_that_does_not_exist_and_the_one_that_comes_twice() -> None:
    spring = change_window(start="02:30", end="03:30", time_zone="Europe/Berlin")
    assert opens_at([spring], at("2026-03-29T01:00:00+01:00")) is not None
    autumn = change_window(start="02:00", end="02:30", time_zone="Europe/Berlin")
    both = [at("2026-10-25T02:15:00+02:00"), at("2026-10-25T02:15:00+01:00")]
    assert [opens_at([autumn], moment) for moment in both] == both


def test_no_window_is_always_open_and_several_add_up() -> None:
    now = at("2026-03-02T12:30:00+00:00")
    assert opens_at([], now) == now
    morning, evening = change_window(start="08:00", end="12:00"), change_window(start="18:00", end="20:00")
    assert opens_at([morning, evening], now) == at("2026-03-02T18:00:00+00:00")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"start": "9", "end": "17:00"}, "HH:MM"),
        ({"start": "09:00", "end": "17:00", "days": ["Someday"]}, "Mon Tue"),
        ({"start": "09:00", "end": "17:00", "time_zone": "Mars/Olympus"}, "IANA name"),
    ],
    ids=["time", "day", "zone"],
)
def test_a_window_that_cannot_be_read_says_what_to_write(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        change_window(**wrong)  # type: ignore[arg-type]

"""Splits are exact, whatever the numbers."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.machine.policy import RolloutPolicy, Step, planned_steps
from tidewheel.rollout.machine.splits import base_of, between, growing, in_words

VERSIONS = [f"v{number}" for number in range(1, 9)]


@st.composite
def splits(draw: st.DrawFn) -> dict[str, int]:
    names = draw(st.lists(st.sampled_from(VERSIONS), min_size=1, max_size=8, unique=True))
    cuts = sorted(draw(st.lists(st.integers(0, 10_000), min_size=len(names) - 1, max_size=len(names) - 1)))
    shares = [high - low for low, high in zip([0, *cuts], [*cuts, 10_000], strict=True)]
    return dict(zip(names, shares, strict=True))


@given(splits(), splits(), st.integers(0, 10_000))
@example({"v1": 1, "v2": 1, "v4": 9_998}, {"v3": 10_000}, 9_999)  # rounding once left the base less than nothing
def test_every_split_on_the_way_sums_exactly(start: dict[str, int], goal: dict[str, int], progress: int) -> None:
    split = between(start, goal, progress)
    assert sum(split.values()) == 10_000
    assert all(share > 0 for share in split.values())


@given(splits(), splits(), st.integers(0, 10_000), st.integers(0, 10_000))
def test_growing_versions_never_shrink_from_step_to_step(
    start: dict[str, int], goal: dict[str, int], one: int, other: int
) -> None:
    early, late = (between(start, goal, progress) for progress in sorted((one, other)))
    for version in growing(start, goal):
        assert early.get(version, 0) <= late.get(version, 0) <= goal[version]


def test_a_tenth_of_a_percent_and_less() -> None:
    """C18: usable down to 0.1 %, no rounding by replica count."""
    assert between({"v1": 10_000}, {"v2": 10_000}, 10) == {"v1": 9990, "v2": 10}
    assert between({"v1": 10_000}, {"v2": 10_000}, 1) == {"v1": 9999, "v2": 1}
    assert between({"v1": 9000, "v2": 1000}, {"v1": 8999, "v2": 1001}, 100) == {"v1": 8999, "v2": 1001}


def test_a_third_version_keeps_a_share_that_does_not_change() -> None:
    start, goal = {"v1": 6667, "v3": 3333}, {"v2": 6667, "v3": 3333}
    for progress in range(0, 10_001, 7):
        assert between(start, goal, progress)["v3"] == 3333


def test_progress_beyond_the_goal_is_refused() -> None:
    with pytest.raises(SettingsError):
        between({"v1": 10_000}, {"v2": 10_000}, 10_001)


def test_the_base_is_what_loses_most() -> None:
    assert base_of({"v1": 2000, "v2": 8000}, {"v3": 10_000}) == "v2"
    assert base_of({}, {"v1": 10_000}) is None
    assert in_words({"v2": 500, "v1": 9500}) == "v1:95% v2:5%"


def test_the_goal_is_a_step_whether_or_not_it_is_spelled_out() -> None:
    for progress in ((100, 5000), (100, 5000, 10_000)):
        policy = RolloutPolicy(steps=tuple(map(Step, progress)))
        steps = planned_steps({"v1": 10_000}, {"v2": 10_000}, policy, base="v1", canary="v2")
        assert [step.split.get("v2") for step in steps] == [100, 5000, 10_000]
        assert [step.judged for step in steps] == [True, True, False]


def test_an_end_state_that_keeps_base_is_judged_too() -> None:
    policy = RolloutPolicy(steps=(Step(1000), Step(10_000)), bake_seconds=60)
    steps = planned_steps({"v1": 10_000}, {"v1": 9000, "v2": 1000}, policy, base="v1", canary="v2")
    assert [(step.split["v2"], step.bake_seconds) for step in steps] == [(100, 60), (1000, 60)]


@pytest.mark.parametrize("progress", [(500, 100), (0,), (100, 100), (10_001,)], ids=str)
def test_steps_that_do_not_grow_are_refused(progress: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match=r"rollout\.steps"):
        RolloutPolicy(steps=tuple(map(Step, progress)))

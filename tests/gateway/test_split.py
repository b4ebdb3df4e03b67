"""The split: everybody gets the version its conversation belongs to, and each version its share."""

import math
from collections import Counter

import pytest

from tidewheel.gateway.split import choose_version

KEYS = [f"conversation-{number}" for number in range(10_000)]


def band(share: float, trials: int = 10_000) -> tuple[float, float]:
    """Where 99.9 % of binomial counts fall (normal approximation, continuity corrected)."""
    mean, deviation = trials * share, math.sqrt(trials * share * (1 - share))
    return mean - 3.2905 * deviation - 0.5, mean + 3.2905 * deviation + 0.5


@pytest.mark.parametrize(
    "weights",
    [
        {"v1": 9000, "v2": 1000},
        {"v1": 9900, "v2": 100},
        {"v1": 9990, "v2": 10},
        {"v1": 5000, "v2": 5000},
        {"v1": 3333, "v2": 3333, "v3": 3334},
        {"v1": 8000, "v2": 1000, "v3": 1000},
    ],
    ids=lambda weights: "/".join(map(str, weights.values())),
)
def test_shares_lie_in_the_binomial_99_9_percent_band(weights: dict[str, int]) -> None:
    counts = Counter(choose_version(list(weights.items()), salt="salt", key=key) for key in KEYS)
    for version, weight in weights.items():
        low, high = band(weight / 10_000)
        assert low <= counts[version] <= high, f"{version}: {counts[version]} outside {low:.0f}..{high:.0f}"


def test_weight_zero_gets_nothing() -> None:
    assert {choose_version([("v1", 10_000), ("v2", 0)], salt="s", key=key) for key in KEYS} == {"v1"}


def test_no_weight_at_all_is_no_version() -> None:
    assert choose_version([("v1", 0)], salt="s", key="k") is None


def test_a_conversation_stays_where_it_is_whatever_the_order_of_targets() -> None:
    targets = [("v1", 5000), ("v2", 3000), ("v3", 2000)]
    for key in KEYS[:500]:
        assert choose_version(targets, salt="s", key=key) == choose_version(targets[::-1], salt="s", key=key)


@pytest.mark.parametrize(("before", "after"), [(100, 500), (500, 2500), (2500, 5000), (5000, 10_000), (0, 100)])
def test_growth_moves_conversations_only_towards_the_growing_version(before: int, after: int) -> None:
    old = [("base", 10_000 - before), ("canary", before)]
    new = [("base", 10_000 - after), ("canary", after)]
    moves = Counter((choose_version(old, salt="s", key=key), choose_version(new, salt="s", key=key)) for key in KEYS)
    assert moves["canary", "base"] == 0
    low, high = band((after - before) / 10_000)
    assert low <= moves["base", "canary"] <= high


def test_a_third_version_keeps_its_share_and_nearly_all_of_its_conversations() -> None:
    old = [("base", 8000), ("canary", 1000), ("other", 1000)]
    new = [("base", 7000), ("canary", 2000), ("other", 1000)]
    pairs = [(choose_version(old, salt="s", key=key), choose_version(new, salt="s", key=key)) for key in KEYS]
    moves = Counter((was, now) for was, now in pairs if was != now)
    assert moves["canary", "base"] == moves["other", "base"] == moves["canary", "other"] == 0
    assert moves["base", "other"] + moves["other", "canary"] < 0.03 * len(KEYS)
    low, high = band(0.1)
    assert low <= sum(now == "other" for _, now in pairs) <= high


def test_another_salt_draws_anew() -> None:
    targets = [("v1", 5000), ("v2", 5000)]
    same = sum(choose_version(targets, salt="a", key=key) == choose_version(targets, salt="b", key=key) for key in KEYS)
    low, high = band(0.5)
    assert low <= same <= high


def test_keys_with_lone_surrogates_are_hashed_too() -> None:
    assert choose_version([("v1", 5000), ("v2", 5000)], salt="s", key="\ud800") in {"v1", "v2"}

"""Cohorts of a comparison: by shares of requests, counted."""

from collections import Counter

import pytest

from tidewheel.gateway.cohorts import cohort_of
from tidewheel.gateway.snapshot import Table, parse_table
from tidewheel.gateway.split import choose_version

REQUESTS = 20_000


def table(*, previous: dict[str, int], rollout: str | None = "r1", **weights: int) -> Table:
    cause = {"actor": "tidewheel-operator", "reason": "StepStarted", "at": "2026-01-01T00:00:00Z"}
    digest = "sha256:" + "0" * 64
    body = {
        "metadata": {"name": "chat", "namespace": "shop", "uid": "u", "generation": 4},
        "spec": {
            "model": "chat",
            "targets": [{"version": v, "weight": w, "digest": digest} for v, w in weights.items()],
            "previous": [{"version": v, "weight": w, "digest": digest} for v, w in previous.items()],
            "salt": "s",
            "cause": {**cause, **({"rolloutId": rollout} if rollout else {})},
        },
    }
    return parse_table(body, observed_at="2026-01-01T00:00:00Z")


def counted(routed: Table) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for number in range(REQUESTS):
        conversation = f"c{number}"
        version = choose_version(routed.weights, salt=routed.spec.salt, key=conversation)
        assert version is not None
        found[version, cohort_of(routed, version, conversation=conversation)] += 1
    return found


def test_the_control_is_a_slice_of_the_base_as_large_as_the_canary() -> None:
    found = counted(table(previous={"v1": 10_000}, v1=9_500, v2=500))
    assert set(found) == {("v1", "rest"), ("v1", "control"), ("v2", "canary")}
    for key in (("v1", "control"), ("v2", "canary")):
        assert found[key] / REQUESTS == pytest.approx(0.05, abs=0.006)


def test_from_half_on_all_of_the_base_is_control() -> None:
    assert set(counted(table(previous={"v1": 10_000}, v1=2_500, v2=7_500))) == {("v1", "control"), ("v2", "canary")}


def test_a_third_version_that_keeps_its_share_is_in_no_comparison() -> None:
    found = counted(table(previous={"v0": 1_000, "v1": 9_000}, v0=1_000, v1=8_000, v2=1_000))
    assert {cohort for version, cohort in found if version == "v0"} == {"rest"}


def test_without_a_rollout_nobody_is_compared() -> None:
    assert {cohort for _, cohort in counted(table(previous={"v1": 10_000}, rollout=None, v1=5_000, v2=5_000))} == {
        "rest"
    }

"""What `kubectl rollback` writes, and what it refuses to write."""

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.cli.rollback_tables import digest, rejection, split, table, target, warm

from tidewheel.cli.rollback.plan import RollbackPlan, RollbackRefusedError, describe, plan_rollback

NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)


def plan(of: dict[str, Any], **options: Any) -> RollbackPlan:
    return plan_rollback(of, actor="ada", now=NOW, **options)


def patched(of: dict[str, Any], planned: RollbackPlan) -> dict[str, Any]:
    """The spec as the API server stores it after the patch."""
    spec: dict[str, Any] = deepcopy(of["spec"])
    for operation in planned.operations:
        if operation["op"] == "test":
            assert operation == {"op": "test", "path": "/metadata/resourceVersion", "value": "41"}
        else:
            spec[operation["path"].removeprefix("/spec/")] = operation["value"]
    return spec


CANARY = table(split(v1=9000, v2=1000), previous=split(v1=10_000))
PROMOTED = table(split(v2=10_000), previous=split(v1=10_000), keepWarm=[warm("v1")])
ROLLED_BACK = table(split(v1=10_000), previous=split(v1=9000, v2=1000), rejected=[rejection("v2")])


@pytest.mark.parametrize(
    ("before", "options", "after", "rejected"),
    [
        pytest.param(CANARY, {}, "v1:100%", ["v2"], id="canary goes back to the base"),
        pytest.param(PROMOTED, {}, "v1:100%", ["v2"], id="promotion is taken back while the base is warm"),
        pytest.param(CANARY, {"to": "v2"}, "v2:100%", ["v1"], id="forward to the canary"),
        pytest.param(
            ROLLED_BACK,
            {"to": "v2", "allow_cold": True},
            "v2:100%",
            ["v1"],
            id="to a rejected version when it is named",
        ),
        pytest.param(
            table(split(v3=10_000), previous=split(v1=5000, v2=5000), keepWarm=[warm("v1", 5000), warm("v2", 5000)]),
            {},
            "v1:50% v2:50%",
            ["v3"],
            id="a split of two comes back whole",
        ),
        pytest.param(
            table(
                split(v4=10_000),
                previous=split(v1=3333, v2=3333, v3=3334),
                rejected=[rejection("v3")],
                keepWarm=[warm("v1"), warm("v2")],
            ),
            {},
            "v1:50% v2:50%",
            ["v4"],
            id="the share of a rejected version goes to the others",
        ),
        pytest.param(
            table(split(v2=10_000), previous=split(v1=10_000, v0=0), keepWarm=[warm("v1")]),
            {},
            "v1:100%",
            ["v2"],
            id="a version named at zero needs no replicas",
        ),
        pytest.param(
            table(split(v3=10_000), previous=split(v2=10_000), keepWarm=[warm("v2"), warm("v1")]),
            {"to": "v1"},
            "v1:100%",
            ["v3"],
            id="two promotions back while that version is warm",
        ),
        pytest.param(
            table(split(v2=10_000), previous=split(v1=10_000)),
            {"ready": ["v1"]},
            "v1:100%",
            ["v2"],
            id="to a version that keeps replicas by itself",
        ),
        pytest.param(
            table(split(v2=10_000), previous=split(v1=10_000)),
            {"allow_cold": True},
            "v1:100%",
            ["v2"],
            id="to a version without replicas when that is asked for",
        ),
    ],
)
def test_new_split(before: dict[str, Any], options: dict[str, Any], after: str, rejected: list[str]) -> None:
    planned = plan(before, **options)
    spec = patched(before, planned)
    assert describe(spec["targets"]) == after
    assert sum(t["weight"] for t in spec["targets"]) == 10_000
    assert planned.rejected == rejected
    assert spec["previous"] == before["spec"]["targets"]
    assert {digest(version) for version in rejected} <= {entry["digest"] for entry in spec["rejected"]}
    assert not {t["digest"] for t in spec["targets"] if t["weight"]} & {e["digest"] for e in spec["rejected"]}
    assert (spec["ruleUid"], spec["ruleGeneration"], spec["salt"]) == ("r1", 7, "s")


@pytest.mark.parametrize(
    ("before", "options", "words"),
    [
        pytest.param(table(split(v1=10_000)), {}, ["nothing to go back to", "v1:100%"], id="never had another split"),
        pytest.param(
            table(split(v3=10_000), previous=split(v2=10_000), rejected=[rejection("v2")], keepWarm=[warm("v2")]),
            {},
            ["only names versions that were rejected: v2", "--to v2`"],
            id="previous only names rejected versions",
        ),
        pytest.param(CANARY, {"to": "v9"}, ["v9", "neither carries traffic", "--to v1|v2"], id="unknown version"),
        pytest.param(
            table(split(v1=10_000)), {"to": "v9"}, ["Put it into the RoutingRule chat"], id="unknown and no choice"
        ),
        pytest.param(
            table(split(v2=10_000), previous=split(v1=10_000)),
            {},
            ["v1 is not kept warm", "--cold"],
            id="replicas are gone",
        ),
    ],
)
def test_refusal_says_what_to_type_instead(before: dict[str, Any], options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RollbackRefusedError) as refusal:
        plan(before, **options)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("before", "options"),
    [
        pytest.param(ROLLED_BACK, {}, id="typed twice"),
        pytest.param(ROLLED_BACK, {"to": "v1"}, id="that version has it all"),
    ],
)
def test_nothing_is_written_when_the_split_is_in_force(before: dict[str, Any], options: dict[str, Any]) -> None:
    planned = plan(before, **options)
    assert not planned.is_needed
    assert planned.message == "chat already sends v1:100%"


def test_naming_a_rejected_version_that_serves_everything_only_clears_the_rejection() -> None:
    before = table(split(v1=10_000), rejected=[rejection("v1"), rejection("v2")])
    spec = patched(before, plan(before, to="v1"))
    assert describe(spec["targets"]) == "v1:100%"
    assert [entry["version"] for entry in spec["rejected"]] == ["v2"]


def test_replicas_of_the_version_that_regains_traffic_stay_and_those_of_the_rejected_one_may_go() -> None:
    before = table(
        split(v2=10_000),
        previous=split(v1=10_000),
        keepWarm=[warm("v1", 4000), warm("v2", 10_000), warm("v0", 100)],
        keepPreviousSeconds=3600,
    )
    kept = {entry["version"]: entry for entry in patched(before, plan(before))["keepWarm"]}
    assert set(kept) == {"v1", "v0"}
    assert kept["v1"]["weight"] == 10_000
    assert kept["v1"]["until"] == "2026-01-01T01:05:00Z"
    assert kept["v0"] == warm("v0", 100)


def test_a_warm_window_is_never_shortened() -> None:
    before = table(split(v2=10_000), previous=split(v1=10_000), keepWarm=[warm("v1", until="2026-01-02T00:00:00Z")])
    assert patched(before, plan(before))["keepWarm"][0]["until"] == "2026-01-02T00:00:00Z"


def test_fields_this_plugin_has_never_heard_of_survive() -> None:
    before = table(split(v2=10_000), previous=[target("v1", 10_000, tiers={"paid": 1})], keepWarm=[warm("v1")])
    assert patched(before, plan(before))["targets"][0]["tiers"] == {"paid": 1}


def test_the_oldest_rejections_make_room() -> None:
    old = [rejection(f"x{index}") for index in range(32)]
    before = table(split(v1=9000, v2=1000), previous=split(v1=10_000), rejected=old)
    versions = [entry["version"] for entry in patched(before, plan(before))["rejected"]]
    assert len(versions) == 32
    assert versions[0] == "x1"
    assert versions[-1] == "v2"


def test_a_digest_is_rejected_once() -> None:
    before = table(split(v1=9000, v2=1000), previous=split(v1=10_000), rejected=[rejection("v2")])
    assert [entry["version"] for entry in patched(before, plan(before))["rejected"]] == ["v2"]


def test_cause_names_the_person_and_the_reason() -> None:
    cause = patched(CANARY, plan(CANARY, reason="TTFT doubled"))["cause"]
    assert cause == {
        "actor": "ada",
        "reason": "Rollback",
        "message": "rolled back from v1:90% v2:10% to v1:100%: TTFT doubled",
        "at": "2026-01-01T00:05:00Z",
    }


def test_a_reason_of_any_length_fits_the_table() -> None:
    cause = patched(CANARY, plan(CANARY, reason="x" * 5000))["cause"]
    assert len(cause["message"]) == 1024


def test_a_version_that_is_byte_for_byte_the_way_back_is_not_rejected() -> None:
    twin = target("v2", 1000, digest=digest("v1"))
    before = table([target("v1", 9000), twin], previous=split(v1=10_000))
    planned = plan(before)
    assert planned.rejected == []
    assert patched(before, planned)["rejected"] == []
    assert describe(patched(before, planned)["targets"]) == "v1:100%"


def under_way(**fields: Any) -> dict[str, Any]:
    """A rule whose rollout from v1 to v2 is not over."""
    rollout = {"phase": "WaitingForCapacity", "from": {"v1": 10_000}, "canary": "v2", "canaryDigest": digest("v2")}
    return {"status": {"rollout": {**rollout, **fields}}}


LATE = table(split(v1=10_000), previous=split(v0=10_000), keepWarm=[warm("v0")])


@pytest.mark.parametrize(
    ("before", "rule", "after", "rejected"),
    [
        pytest.param(LATE, under_way(), "v1:100%", ["v2"], id="before its first weight"),
        pytest.param(
            table(split(v1=10_000), previous=split(v1=10_000)), under_way(), "v1:100%", ["v2"], id="its replicas died"
        ),
        pytest.param(CANARY, under_way(phase="Baking"), "v1:100%", ["v2"], id="it has traffic"),
        pytest.param(LATE, under_way(phase="Finished"), "v0:100%", ["v1"], id="it is over"),
        pytest.param(LATE, under_way(canaryDigest=""), "v0:100%", ["v1"], id="it judges no version"),
        pytest.param(LATE, under_way(canaryDigest=digest("v1")), "v0:100%", ["v1"], id="it is what serves already"),
        pytest.param(LATE, None, "v0:100%", ["v1"], id="the rule is not known"),
        pytest.param(LATE, {}, "v0:100%", ["v1"], id="the rule has no status"),
    ],
)
def test_a_rollout_without_traffic_is_ended_where_it_stands(
    before: dict[str, Any], rule: dict[str, Any] | None, after: str, rejected: list[str]
) -> None:
    planned = plan(before, rule=rule)
    assert describe(patched(before, planned)["targets"]) == after
    assert list(planned.rejected) == rejected


def test_to_a_version_means_that_version_whatever_is_under_way() -> None:
    assert describe(plan(LATE, rule=under_way(), to="v0").after) == "v0:100%"

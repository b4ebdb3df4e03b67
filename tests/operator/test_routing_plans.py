"""From rule to table: when traffic moves, when it does not, and what the rule's status says."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.operator.builders import KEY, NOW, SETTINGS, ago, ahead, picture, pod, rule, table, version

from tidewheel.crds.routingtable import RoutingTableSpec
from tidewheel.crds.tiers import Tier, Tiers
from tidewheel.operator.moments import format_moment
from tidewheel.operator.planning.actions import DeleteTable, WriteTable
from tidewheel.operator.planning.model import ModelPlan, plan_model, plan_rule_status
from tidewheel.operator.planning.records import Picture, RuleRecord, TableRecord

V1, V2, V3 = version("v1", replicas=1), version("v2", replicas=2), version("v3", replicas=1)
ALL = {"v1": V1, "v2": V2, "v3": V3}
PODS = (pod(V1), pod(V2, 0), pod(V2, 1))


def plan(of: Picture) -> ModelPlan:
    return plan_model(of, settings=SETTINGS, new_salt="new-salt")


def written(of: Picture) -> RoutingTableSpec | None:
    action = plan(of).routing.action
    assert action is None or isinstance(action, WriteTable), action
    return action.spec if action else None


def split(spec: RoutingTableSpec | None) -> dict[str, int]:
    return {target.version: target.weight for target in spec.targets} if spec else {}


def conditions(of: Picture) -> dict[str, tuple[str, str]]:
    assert of.rule is not None
    status = plan_rule_status(of.rule, plan(of), of, {})
    assert status is not None
    return {each.type: (each.status.value, each.reason) for each in status.conditions}


def message(of: Picture, kind: str) -> str:
    assert of.rule is not None
    status = plan_rule_status(of.rule, plan(of), of, {})
    assert status is not None
    return next(each.message for each in status.conditions if each.type == kind)


def test_the_first_split_waits_for_a_replica_that_generated_a_token() -> None:
    waiting = picture(V1, pods=(pod(V1, state="loading"),), rule=rule(v1=100))
    assert written(waiting) is None
    assert conditions(waiting)["Reconciling"] == ("True", "WaitingForReplicas")
    assert conditions(waiting)["Ready"][0] == "False"
    ready = picture(V1, pods=(pod(V1),), rule=rule(v1=100))
    spec = written(ready)
    assert split(spec) == {"v1": 10_000}
    assert spec is not None
    assert (spec.salt, spec.rule_uid, spec.rule_generation) == ("new-salt", "uid-rule", 1)
    assert spec.cause.actor == "tidewheel-operator"


def test_a_move_keeps_salt_previous_and_the_losers_warm() -> None:
    before = table(ALL, answered=rule(v1=100), v1=10_000)
    spec = written(picture(V1, V2, pods=PODS, rule=rule(generation=2, v1=90, v2=10), table=before))
    assert spec is not None
    assert split(spec) == {"v1": 9_000, "v2": 1_000}
    assert spec.salt == "salt"
    assert [(target.version, target.weight) for target in spec.previous] == [("v1", 10_000)]
    until = format_moment(NOW + timedelta(seconds=900))
    assert [(entry.version, entry.weight, entry.until) for entry in spec.keep_warm] == [("v1", 10_000, until)]


@pytest.mark.parametrize(("percent", "ready", "moves"), [(10, 1, True), (50, 1, True), (100, 1, False), (100, 2, True)])
def test_replicas_asked_for_before_weight_grows_follow_the_share(percent: int, ready: int, moves: bool) -> None:
    pods = (
        pod(V1),
        *(pod(V2, slot) for slot in range(ready)),
        *(pod(V2, slot, state="loading") for slot in range(ready, 2)),
    )
    shares = {"v2": percent} | ({"v1": 100 - percent} if percent < 100 else {})
    before = table(ALL, answered=rule(v1=100), v1=10_000)
    assert bool(written(picture(V1, V2, pods=pods, rule=rule(generation=2, **shares), table=before))) is moves


def test_a_replica_counts_once_gateways_have_had_time_to_know_it() -> None:
    """dynamo#13622: the pod is Ready before the gateway knows it."""
    fresh = replace(pod(V1), ready_since=ago(0.4))
    made = plan(picture(V1, pods=(fresh,), rule=rule(v1=100))).routing
    assert made.action is None
    assert made.wake_at == (ahead(0.6),)


def test_shrinking_waits_for_nothing() -> None:
    before = table(ALL, answered=rule(v1=90, v2=10), v1=9_000, v2=1_000)
    spec = written(picture(V1, V2, pods=(pod(V1),), rule=rule(generation=2, v1=100), table=before))
    assert split(spec) == {"v1": 10_000}


def test_draining_replicas_are_no_capacity() -> None:
    before = table(ALL, answered=rule(v1=100), v1=10_000)
    pods = (pod(V1), pod(V3, state="draining"))
    assert written(picture(V1, V3, pods=pods, rule=rule(generation=2, v3=100), table=before)) is None


REFUSED = {
    "version that does not exist": (rule(generation=2, v1=50, v9=50), "VersionNotFound", "Reconciling"),
    "version being deleted": (rule(generation=2, v1=50, v3=50), "VersionDeleted", "Stalled"),
}


@pytest.mark.parametrize(("asked", "reason", "state"), REFUSED.values(), ids=REFUSED)
def test_a_rule_that_cannot_be_obeyed_says_why_and_moves_nothing(asked: RuleRecord, reason: str, state: str) -> None:
    before = table(ALL, answered=rule(v1=100), v1=10_000)
    leaving = version("v3", replicas=1, deleting=True)
    seen = picture(V1, leaving, pods=(pod(V1), pod(leaving)), rule=asked, table=before)
    assert written(seen) is None
    assert conditions(seen)["Accepted"] == ("False", reason)
    assert conditions(seen)["Ready"] == ("False", reason)
    assert conditions(seen)[state] == ("True", reason)
    assert "spec.traffic[1]" in message(seen, "Accepted")


def test_a_version_at_zero_percent_need_not_exist() -> None:
    seen = picture(V1, pods=(pod(V1),), rule=rule(v1=100, v9=0))
    assert split(written(seen)) == {"v1": 10_000}


def test_a_person_s_split_is_adopted_and_not_fought() -> None:
    answered = rule(v1=100)
    by_hand = table(ALL, answered=answered, actor="alice", v1=5_000, v2=5_000)
    seen = picture(V1, V2, pods=PODS, rule=answered, table=by_hand)
    assert written(seen) is None
    assert conditions(seen)["Degraded"] == ("True", "SplitOverridden")
    assert "alice" in message(seen, "Degraded")


def test_after_a_rollback_git_still_names_the_rejected_version_and_nothing_moves() -> None:
    asked = rule(generation=2, v1=0, v2=100)
    rolled_back = table(ALL, answered=asked, previous={"v2": 10_000}, rejected=("v2",), actor="alice", v1=10_000)
    seen = picture(V1, V2, pods=PODS, rule=asked, table=rolled_back)
    assert written(seen) is None
    assert conditions(seen)["Degraded"] == ("True", "VersionRejected")
    assert conditions(seen)["Stalled"][0] == "True"
    edited = picture(V1, V2, pods=PODS, rule=rule(generation=3, v1=50, v2=50), table=rolled_back)
    assert written(edited) is None, "a newer rule that names the rejected digest moves nothing either"
    other = version("v2", replicas=2, engine={"image": "tidewheel:2"})
    mended = picture(V1, other, pods=(pod(V1), pod(other, 0), pod(other, 1)), rule=edited.rule, table=rolled_back)
    assert split(written(mended)) == {"v1": 5_000, "v2": 5_000}, "the same name with another digest is another version"


def test_a_rule_that_asks_for_the_split_in_force_is_only_noted_as_answered() -> None:
    before = table(ALL, answered=rule(uid="uid-before", v1=100), orphaned=60, v1=10_000)
    spec = written(picture(V1, pods=(), rule=rule(uid="uid-new", v1=100), table=before))
    assert spec is not None
    assert (spec.rule_uid, spec.orphaned_at, split(spec)) == ("uid-new", None, {"v1": 10_000})
    assert before.spec is not None
    assert spec.cause == before.spec.cause


ORPHANS = {
    "first sight": (table(ALL, v1=10_000), "orphaned"),
    "in its time": (table(ALL, orphaned=899, v1=10_000), "kept"),
    "its time is over": (table(ALL, orphaned=901, v1=10_000), "deleted"),
}


@pytest.mark.parametrize(("seen", "outcome"), ORPHANS.values(), ids=ORPHANS)
def test_a_table_outlives_its_rule_for_a_while(seen: TableRecord, outcome: str) -> None:
    made = plan(picture(V1, pods=(pod(V1),), table=seen)).routing
    if outcome == "orphaned":
        assert isinstance(made.action, WriteTable)
        assert made.action.spec.orphaned_at == format_moment(NOW)
    elif outcome == "kept":
        assert made.action is None
        assert min(made.wake_at) == NOW + timedelta(seconds=1)
    else:
        assert isinstance(made.action, DeleteTable)


def test_a_rule_that_is_being_deleted_is_gone() -> None:
    made = plan(picture(V1, pods=(pod(V1),), rule=rule(deleting=True, v1=100), table=table(ALL, v1=10_000)))
    assert isinstance(made.routing.action, WriteTable)
    assert made.routing.action.spec.orphaned_at is not None


def test_an_slo_edit_reaches_the_table_and_moves_nothing() -> None:
    answered = rule(v1=100)
    slower = version("v1", replicas=1, slo={"ttftMs": 500, "tpotMs": 20})
    spec = written(picture(slower, pods=(pod(slower),), rule=answered, table=table(ALL, answered=answered, v1=10_000)))
    assert spec is not None
    assert (split(spec), spec.targets[0].slo.ttft_ms, spec.keep_warm) == ({"v1": 10_000}, 500, [])


def test_rollback_targets_cool_when_their_time_is_over() -> None:
    answered = rule(v2=100)
    warm = table(ALL, answered=answered, previous={"v1": 10_000}, warm={"v1": (10_000, -1)}, v2=10_000)
    spec = written(picture(V1, V2, pods=PODS, rule=answered, table=warm))
    assert spec is not None
    assert spec.keep_warm == []


def test_a_rollback_is_armed_while_the_previous_version_has_ready_replicas() -> None:
    answered = rule(v2=100)
    warm = table(ALL, answered=answered, previous={"v1": 10_000}, warm={"v1": (10_000, 300)}, v2=10_000)
    seen = picture(V1, V2, pods=PODS, rule=answered, table=warm)
    assert written(seen) is None
    assert conditions(seen)["RollbackArmed"] == ("True", "PreviousWarm")
    assert conditions(seen)["Ready"] == ("True", "SplitInForce")
    assert "12:05:00" in message(seen, "RollbackArmed")
    cold = picture(V1, V2, pods=PODS[1:], rule=answered, table=warm)
    assert conditions(cold)["RollbackArmed"] == ("False", "PreviousNotReady")


def test_after_a_rollback_there_is_nothing_to_go_back_to() -> None:
    """What `kubectl rollback` would do if it were typed again: nothing."""
    answered = rule(v1=90, v2=10)
    split_before = {"v1": 9000, "v2": 1000}
    rolled_back = table(ALL, answered=answered, previous=split_before, rejected=("v2",), actor="ada", v1=10_000)
    seen = picture(V1, V2, pods=PODS, rule=answered, table=rolled_back)
    assert conditions(seen)["RollbackArmed"] == ("False", "NothingPrevious")


def test_a_version_that_takes_traffic_without_a_ready_replica_degrades_the_rule() -> None:
    answered = rule(v1=100)
    in_force = table(ALL, answered=answered, v1=10_000)
    assert conditions(picture(V1, rule=answered, table=in_force))["Degraded"] == ("True", "VersionUnavailable")


def test_going_back_in_the_middle_of_a_move_keeps_what_serves() -> None:
    """kuberay#4989, dynamo#13620: A -> B -> A at 40 %."""
    halfway = table(
        ALL,
        answered=rule(generation=2, v1=60, v2=40),
        previous={"v1": 10_000},
        warm={"v1": (10_000, 300)},
        v1=6_000,
        v2=4_000,
    )
    spec = written(picture(V1, V2, pods=PODS, rule=rule(generation=3, v1=100), table=halfway))
    assert split(spec) == {"v1": 10_000}
    assert spec is not None
    assert [entry.version for entry in spec.keep_warm] == ["v2"]


def test_an_unreadable_table_is_left_alone() -> None:
    broken = TableRecord(meta=table(ALL, v1=10_000).meta, spec=None, invalid="spec.targets: of a newer version")
    seen = picture(V1, pods=(pod(V1),), rule=rule(v1=100), table=broken)
    assert written(seen) is None
    assert conditions(seen)["Stalled"] == ("True", "TableUnreadable")


def test_key_and_rule_have_one_name() -> None:
    assert rule(v1=100).key == KEY


def test_a_rollback_target_keeps_what_gateways_knew_of_it() -> None:
    """So that `kubectl rollback --to` may go back further than the previous split."""
    in_force = table(ALL, answered=rule(generation=2, v1=100), v1=10_000)
    spec = written(picture(V1, V2, pods=PODS, rule=rule(generation=3, v2=100), table=in_force))
    assert spec is not None
    (kept,) = spec.keep_warm
    (before,) = in_force.spec.targets if in_force.spec else ()
    assert kept.model_dump(exclude={"until"}) == before.model_dump()


@pytest.mark.parametrize(("v1", "v2"), [(10_000, 0), (5_000, 5_000)], ids=["in force", "a person's split"])
def test_an_edit_of_the_tiers_reaches_the_table_and_moves_nothing(v1: int, v2: int) -> None:
    answered = rule(v1=100)
    tiers = Tiers(free=Tier(tokens_per_minute=1_000))
    assert answered.spec is not None
    edited = replace(answered, spec=answered.spec.model_copy(update={"tiers": tiers}))
    before = table(ALL, answered=answered, actor="alice", v1=v1, v2=v2)
    spec = written(picture(V1, V2, pods=PODS, rule=edited, table=before))
    assert spec is not None
    assert spec.tiers == tiers
    assert before.spec is not None
    assert spec.targets == before.spec.targets

"""Rollouts through the operator's own planner, executor and reconciler; the world says what came of them."""

from collections.abc import Iterator

import pytest
from tests.operator.rollouts.world import World

from tidewheel.clients.resources import ROUTING_RULES
from tidewheel.rollout.judge.findings import VerdictKind


@pytest.fixture
def world() -> Iterator[World]:
    """v42 has all traffic, v43 is there."""
    made = World()
    made.apply_version("v42")
    made.apply_version("v43")
    made.apply_rule(v42=100)
    made.settle()
    assert made.split() == {"v42": 10_000}
    made.events.clear()
    yield made
    made.close()


def test_a_healthy_version_goes_through_every_step(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    seen = []
    for _ in range(100):
        world.tick()
        if not seen or seen[-1] != world.split():
            seen.append(world.split())
        if world.split() == {"v43": 10_000}:
            break
    assert [split.get("v43", 0) for split in seen] == [100, 500, 2500, 5000, 10_000]
    rollout = world.until_finished()
    assert (rollout["outcome"], rollout["progress"]) == ("Promoted", "Promoted")
    assert rollout["lastGood"]["version"] == "v43"
    assert world.condition("Ready") == ("True", "SplitInForce")
    assert [reason for reason, _ in world.events].count("StepStarted") == 5
    spec = world.table()["spec"]
    assert {target["version"]: target["weight"] for target in spec["previous"]} == {"v42": 10_000}
    assert [(entry["version"], entry["weight"]) for entry in spec["keepWarm"]] == [("v42", 10_000)]
    assert "rolloutId" not in spec["cause"]


def test_while_it_runs_the_table_names_the_rollout_and_the_status_its_step(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 500)
    world.tick()
    rollout, cause = world.rollout(), world.table()["spec"]["cause"]
    assert rollout is not None
    assert (cause["rolloutId"], cause["step"]) == (rollout["id"], 2)
    assert rollout["progress"] == "2/5"
    assert rollout["verdict"] == "CLEAR"
    assert rollout["observedShare"] == pytest.approx(0.1)
    assert world.condition("GatePassing") == ("True", "Clear")
    assert world.condition("Ready")[0] == "False"
    assert world.condition("Reconciling")[0] == "True"
    assert rollout["report"][0].startswith("step 2/5  5.00%")


def test_a_bad_version_goes_back_in_one_write_and_stays_out(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 100)
    generation = world.table()["metadata"]["generation"]
    world.kind = VerdictKind.BREACH
    world.tick()
    assert world.split() == {"v42": 10_000}
    assert world.table()["metadata"]["generation"] == generation + 1
    assert [entry["version"] for entry in world.table()["spec"]["rejected"]] == ["v43"]
    assert world.condition("Degraded") == ("True", "VersionRejected")
    world.kind = VerdictKind.CLEAR
    for percent in (0, 1, 2):  # Git, again and again
        world.apply_rule(v42=percent, v43=100 - percent)
        world.tick()
    assert world.split() == {"v42": 10_000}


def test_a_retry_is_a_new_rollout_and_is_asked_for_once(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 100)
    world.kind = VerdictKind.BREACH
    world.tick()
    rejected = world.table()["spec"]["rejected"][0]["digest"]
    first = world.rollout()
    assert first is not None
    world.control(retryDigest=rejected, paused=False)
    world.kind = VerdictKind.BREACH
    world.until("v43", 100)
    second = world.rollout()
    assert second is not None
    assert second["id"] != first["id"]
    world.tick()
    assert world.split() == {"v42": 10_000}
    for _ in range(20):
        world.tick()
    assert world.split() == {"v42": 10_000}, "the second rejection was retried by itself"
    assert [past["outcome"] for past in (world.rollout() or {})["history"]] == ["Rejected", "Rejected", "Promoted"]


def test_a_retry_typed_for_an_earlier_rollout_is_ignored(world: World) -> None:
    """C04."""
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 100)
    world.kind = VerdictKind.BREACH
    world.tick()
    digest = world.table()["spec"]["rejected"][0]["digest"]
    world.control(retryDigest=digest, rolloutId="another")
    world.tick()
    assert world.split() == {"v42": 10_000}
    assert (world.rollout() or {})["outcome"] == "Rejected"


def test_a_rollback_by_hand_is_adopted_and_never_fought(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 500)
    assert world.roll_back_by_hand()
    for _ in range(10):
        world.tick()
    assert world.split() == {"v42": 10_000}
    assert world.table()["spec"]["cause"]["actor"] == "ada"
    assert (world.rollout() or {})["outcome"] == "RolledBack"
    assert world.condition("Degraded") == ("True", "VersionRejected")


def test_after_a_promotion_a_rollback_by_hand_goes_to_the_version_before(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until_finished()
    assert world.serving("v42") == 2
    assert world.roll_back_by_hand()
    world.tick()
    assert world.split() == {"v42": 10_000}


def test_the_old_version_keeps_all_replicas_until_its_time_is_over(world: World) -> None:
    world.apply_version("v42", replicas=4)
    world.settle()
    world.apply_rule(v42=0, v43=100)
    while world.split() != {"v43": 10_000}:
        world.tick()
        assert world.serving("v42") == 4
    for _ in range(20):
        world.tick(60)
    world.apply_version("v42", replicas=0)
    world.tick(60)
    assert world.serving("v42") == 0


def test_a_third_version_waits_until_the_second_has_nothing(world: World) -> None:
    world.apply_version("v44")
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 2500)
    world.apply_rule(v42=0, v44=100)
    splits = []
    for _ in range(200):
        world.tick(5)
        splits.append(world.split())
        if world.split() == {"v44": 10_000}:
            break
    assert splits[-1] == {"v44": 10_000}
    assert all(len(split) <= 2 for split in splits)
    assert not any("v43" in split and "v44" in split for split in splits)
    assert "Superseded" in [past["outcome"] for past in (world.rollout() or {})["history"]]


def test_a_version_that_never_becomes_ready_gets_nothing_and_says_so(world: World) -> None:
    world.unready = {"v43"}
    world.apply_rule(v42=0, v43=100)
    for _ in range(50):
        world.tick(60)
    assert world.split() == {"v42": 10_000}
    assert world.condition("Stalled") == ("True", "InsufficientCapacity")
    assert (world.rollout() or {})["phase"] == "WaitingForCapacity"


def test_a_version_without_traffic_yet_is_what_a_rollback_would_end(world: World) -> None:
    """`RollbackArmed` once promised the split before the one in force, which `kubectl rollback` does not take then."""
    world.unready = {"v43"}
    world.apply_rule(v42=0, v43=100)
    for _ in range(3):
        world.tick()
    assert world.condition("RollbackArmed") == ("True", "NothingMoved")
    world.unready = set()
    world.until("v43", 100)
    assert world.condition("RollbackArmed") == ("True", "PreviousWarm")


def test_a_canary_that_dies_gets_no_traffic_and_keeps_its_step(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 500)
    world.unready = {"v43"}
    world.tick(5)
    assert world.split() == {"v42": 10_000}
    world.unready = set()
    world.until("v43", 500)
    assert (world.rollout() or {})["step"] == 1


def test_a_dead_base_moves_everybody_to_the_canary_after_a_while(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 500)
    world.unready = {"v42"}
    for _ in range(10):
        world.tick(10)
    assert world.split() == {"v43": 10_000}


def test_a_breach_without_anywhere_to_go_pages(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 500)
    world.unready = {"v42"}
    world.tick(1)
    world.kind = VerdictKind.BREACH
    world.tick(1)
    assert world.split() == {"v42": 9500, "v43": 500}
    assert world.condition("Degraded") == ("True", "NoHealthyTarget")


def test_a_gateway_that_does_not_confirm_stops_the_clock_and_is_named(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 100)
    world.gateways_follow, world.gateways["c"] = False, None
    for _ in range(20):
        world.tick()
    assert world.split() == {"v42": 9900, "v43": 100}
    assert "c" in (world.rollout() or {})["message"]


@pytest.mark.parametrize("kind", [VerdictKind.BLIND, VerdictKind.THIN, VerdictKind.SUSPECT, VerdictKind.SKEWED, None])
def test_nothing_but_clear_advances(world: World, kind: VerdictKind | None) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 100)
    world.kind = kind
    for _ in range(20):
        world.tick()
    assert world.split() == {"v42": 9900, "v43": 100}


def test_a_pause_holds_and_a_breach_still_rolls_back(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 100)
    world.pause(paused=True)
    for _ in range(20):
        world.tick()
    assert world.split() == {"v42": 9900, "v43": 100}
    assert (world.rollout() or {})["suspended"] is True
    world.kind = VerdictKind.BREACH
    world.tick()
    assert world.split() == {"v42": 10_000}


def test_promote_by_command_skips_the_judge_and_names_who(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 100)
    world.kind = VerdictKind.THIN
    world.control(promoteStep=5)
    world.tick()
    assert world.split() == {"v43": 10_000}
    rollout = world.until_finished()
    assert (rollout["outcome"], rollout["promotedBy"]) == ("FastPromoted", "ada")


def test_without_steps_traffic_moves_at_once(world: World) -> None:
    world.apply_rule(steps=(), v42=0, v43=100)
    world.settle()
    assert world.split() == {"v43": 10_000}
    assert world.rollout() is None or "outcome" in (world.rollout() or {})


def test_a_restored_backup_without_statuses_starts_the_step_again(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 2500)
    rule = world.rule()
    rule.pop("status")
    world.store.put(ROUTING_RULES, rule)
    world.start_operator()
    world.tick()
    assert world.split() == {"v42": 7500, "v43": 2500}
    assert (world.rollout() or {})["bakedSeconds"] == 0
    assert world.until_finished()["outcome"] == "Promoted"


def test_a_rule_that_cannot_be_obeyed_any_more_stands_still_and_can_go_back(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 500)
    world.apply_rule(v42=0, v99=100)
    for _ in range(10):
        world.tick()
    assert world.split() == {"v42": 9500, "v43": 500}
    assert world.condition("Accepted") == ("False", "VersionNotFound")
    world.kind = VerdictKind.BREACH
    world.tick()
    assert world.split() == {"v42": 10_000}


def test_at_rest_nothing_is_written(world: World) -> None:
    """strimzi#13079: an operator that writes for ever."""
    world.apply_rule(v42=0, v43=100)
    world.until_finished()
    for _ in range(40):
        world.tick(60)
    writes = world.store.writes
    for _ in range(5):
        world.tick(60)
    assert world.store.writes == writes


def test_a_hold_is_written_once_however_often_it_is_looked_at(world: World) -> None:
    world.apply_rule(v42=0, v43=100)
    world.until("v43", 100)
    world.kind = None
    world.tick()
    writes = world.store.writes
    for _ in range(50):
        world.tick(5)
    assert world.store.writes == writes

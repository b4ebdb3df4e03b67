"""Capacity, weight, confirmation, bake; and every way a rollout ends. Cases name the reports they come from."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.rollout.world import POLICY, START, STEPS, World

from tidewheel.crds.rolloutchoices import OnBlind, OnCapacity, Patience
from tidewheel.rollout.errors import StateError
from tidewheel.rollout.judge.findings import VerdictKind
from tidewheel.rollout.machine.policy import RolloutPolicy, Step
from tidewheel.rollout.machine.situation import TableFacts, VersionFacts
from tidewheel.rollout.machine.state import Outcome, Phase, from_json, to_json
from tidewheel.rollout.planning.windows import change_window

BASE = {"v42": 10_000}
RAMP = [
    {"v42": 9900, "v43": 100},
    {"v42": 9500, "v43": 500},
    {"v42": 7500, "v43": 2500},
    {"v42": 5000, "v43": 5000},
    {"v43": 10_000},
]


def ready(world: World, version: str, replicas: int) -> None:
    world.versions = {**world.versions, version: replace(world.versions[version], ready=replicas)}


def started(**changes: object) -> World:
    world = World(**changes)  # type: ignore[arg-type]
    world.want(v42=0, v43=100)
    return world


def at_five_percent(**changes: object) -> World:
    world = started(**changes)
    world.until("v43", 500)
    return world


def rejected() -> World:
    world = at_five_percent()
    world.kind = VerdictKind.BREACH
    world.until_finished()
    world.kind = VerdictKind.CLEAR
    return world


def test_a_healthy_version_goes_through_every_step_in_its_bake_time() -> None:
    world = started()
    state = world.until_finished()
    assert state.outcome is Outcome.PROMOTED
    assert world.splits == RAMP
    assert world.now - START <= timedelta(minutes=42)
    assert state.last_good is not None
    assert state.last_good.version == "v43"
    assert [event.reason for event in world.events].count("StepStarted") == 5


def test_no_steps_means_at_once_but_with_replicas() -> None:
    world = started(policy=RolloutPolicy())
    ready(world, "v43", 3)
    decision = world.tick()
    assert world.split == BASE
    assert decision.reason == "WaitingForCapacity"
    assert decision.grow == {"v43": 10_000}
    ready(world, "v43", 10)
    assert world.until_finished().outcome is Outcome.PROMOTED
    assert world.splits == [{"v43": 10_000}]


def test_a_first_deployment_has_no_base_and_no_steps() -> None:
    """C06, AR#3686: waits for a replica, is never judged."""
    world = World(table=None)
    world.want(v42=100)
    ready(world, "v42", 0)
    assert world.tick().reason == "WaitingForCapacity"
    ready(world, "v42", 10)
    assert world.until_finished().outcome is Outcome.PROMOTED
    assert world.splits == [BASE]


@pytest.mark.parametrize("kind", [VerdictKind.THIN, VerdictKind.SUSPECT, VerdictKind.SKEWED, VerdictKind.BLIND])
def test_only_clear_advances(kind: VerdictKind) -> None:
    """AR#3850, FL#1035, FL#361: held for two hours, with an event, never rejected."""
    world = at_five_percent()
    world.kind = kind
    for _ in range(270):
        decision = world.tick()
    assert world.split == RAMP[1]
    assert world.state is not None
    assert not world.state.is_finished
    assert world.table is not None
    assert not world.table.rejected
    if kind is VerdictKind.SUSPECT:
        assert decision.stalled is not None
    assert any(event.reason == "Held" for event in world.events)


def test_thin_may_advance_by_policy_and_blind_never() -> None:
    """pipe-cd/pipecd#1771, #3661"""
    policy = replace(POLICY, on_thin=Patience.ADVANCE, max_hold_seconds=600)
    thin, blind = at_five_percent(policy=policy), at_five_percent(policy=policy)
    thin.kind, blind.kind = VerdictKind.THIN, VerdictKind.BLIND
    for _ in range(60):
        thin.tick()
        blind.tick()
    assert thin.split == RAMP[2]
    assert blind.split == RAMP[1]
    assert not hasattr(OnBlind, "ADVANCE")


def test_blind_for_too_long_may_roll_back_by_policy_without_a_rejection() -> None:
    """C25"""
    world = at_five_percent(policy=replace(POLICY, on_blind=OnBlind.ROLLBACK, max_hold_seconds=300))
    world.kind = VerdictKind.BLIND
    state = world.until_finished()
    assert state.outcome is Outcome.ROLLED_BACK
    assert world.split == BASE
    assert world.table is not None
    assert not world.table.rejected


def test_blind_time_is_no_bake_time_and_says_so_after_two_minutes() -> None:
    """C10, C25"""
    world = at_five_percent()
    for _ in range(5):
        world.tick()
    assert world.state is not None
    baked = world.state.baked_seconds
    world.kind = VerdictKind.BLIND
    decisions = [world.tick() for _ in range(6)]
    assert world.state.baked_seconds == baked
    assert decisions[0].degraded is None
    assert decisions[-1].degraded is not None
    world.kind = VerdictKind.CLEAR
    world.tick()
    assert world.state.baked_seconds == baked + 30


def test_an_old_verdict_advances_nothing() -> None:
    world = at_five_percent()
    for _ in range(19):
        world.tick()
    verdict = world.verdict
    world.now += timedelta(minutes=10)
    world.verdict = verdict
    world.look()
    assert world.split == RAMP[1]


def test_a_verdict_of_an_earlier_step_is_dropped() -> None:
    """C36, AR#3220"""
    world = started()
    world.until("v43", 100)
    for _ in range(4):
        world.tick()
    old = world.verdict
    world.until("v43", 500)
    assert old is not None
    world.verdict = replace(old, kind=VerdictKind.BREACH)
    world.look()
    assert world.split == RAMP[1]
    assert world.state is not None
    assert world.state.dropped_verdicts == 1


def test_nothing_is_judged_before_every_gateway_confirms() -> None:
    """C09: one that does not is named after 30 s."""
    world = started()
    world.gateways_follow = False
    for _ in range(4):
        decision = world.tick(20)
    assert decision.judge is None
    assert decision.degraded is not None
    assert decision.degraded.reason == "GatewaysNotConfirming"
    assert "a, b" in decision.message
    world.gateways_follow = True
    world.tick(5)
    assert world.tick(5).judge is not None


def test_a_gateway_that_comes_later_stops_the_clock_until_it_confirms() -> None:
    world = at_five_percent()
    world.gateways["c"] = None
    world.gateways_follow = False
    assert world.state is not None
    baked = world.state.baked_seconds
    decision = world.tick()
    assert decision.reason == "ClockStopped"
    assert world.state.baked_seconds == baked


def test_weight_follows_capacity_and_waiting_has_a_deadline_of_its_own() -> None:
    """C07, C13, FLP#1253: the need comes from load, and expiry is no evidence against the version."""
    world = at_five_percent()
    ready(world, "v43", 1)
    for _ in range(30):
        world.tick()
    assert world.split == RAMP[1]
    assert world.last is not None
    assert world.last.reason == "WaitingForCapacity"
    assert world.last.grow == {"v43": 2500}
    assert "3 replica(s) of v43 (ready: 1)" in world.last.message
    assert world.last.stalled is None
    for _ in range(45):
        world.tick()
    assert world.last.stalled is not None
    assert world.last.stalled.reason == "InsufficientCapacity"
    ready(world, "v43", 10)
    world.until("v43", 2500)


def test_too_few_canary_replicas_stop_the_clock() -> None:
    """C12"""
    world = started()
    world.until("v43", 2500)
    ready(world, "v43", 2)
    assert world.state is not None
    baked = world.state.baked_seconds
    world.tick()
    assert world.state.baked_seconds == baked
    assert world.last is not None
    assert world.last.reason == "ClockStopped"


def test_a_canary_without_replicas_gets_no_traffic_and_keeps_its_step() -> None:
    """C12, serving-progressive-rollout#83"""
    world = at_five_percent()
    for _ in range(4):
        world.tick()
    ready(world, "v43", 0)
    world.tick(1)
    assert world.split == BASE
    assert world.state is not None
    assert (world.state.step, world.state.is_finished) == (1, False)
    baked = world.state.baked_seconds
    ready(world, "v43", 10)
    world.until("v43", 500)
    assert world.state.baked_seconds >= baked


def test_a_breach_is_one_write_and_is_remembered() -> None:
    """C37, C40"""
    world = at_five_percent()
    world.kind = VerdictKind.BREACH
    world.now += timedelta(seconds=30)
    world.judge()
    writes = len(world.splits)
    decision = world.look()
    assert world.splits[writes:] == [BASE]
    assert decision.reject is not None
    assert decision.reject.digest == "sha256:v43"
    assert world.table is not None
    assert world.table.rejection_of("sha256:v43") is not None
    assert world.state is not None
    assert world.state.outcome is Outcome.REJECTED
    assert "said so" in world.state.message


def test_a_rejected_digest_stays_out_whatever_git_does() -> None:
    """AR#2929, argo-cd#9570: re-applied ten times, the operator restarted, steps edited."""
    world = rejected()
    for _ in range(10):
        world.want(v42=0, v43=100)
        world.policy = replace(POLICY, steps=(Step(1000), Step(10_000)))
        world.stored = None
        decision = world.tick()
        assert decision.degraded is not None
        assert decision.degraded.reason == "VersionRejected"
        assert "retry" in decision.message
    assert world.split == BASE


def test_another_version_starts_at_once_after_a_rejection() -> None:
    """AR#2048"""
    world = rejected()
    world.want(v42=0, v44=100)
    world.tick()
    assert world.split == {"v42": 9900, "v44": 100}


def test_another_digest_under_the_same_name_is_judged_anew() -> None:
    world = rejected()
    world.versions = {**world.versions, "v43": VersionFacts(digest="sha256:v43b", ready=10)}
    world.want(v42=0, v43=100)
    world.tick()
    assert world.split == RAMP[0]


def test_a_retry_is_a_new_rollout_from_the_first_step() -> None:
    """AR#2897"""
    world = rejected()
    old = world.state
    world.control(retry_digest="sha256:v43")
    world.tick()
    assert world.split == RAMP[0]
    assert world.state is not None
    assert old is not None
    assert world.state.id != old.id
    assert world.state.step == 0
    assert world.table is not None
    assert not world.table.rejected


def test_a_third_version_waits_until_the_second_is_gone() -> None:
    """C42, AR#1852, AR#1372: at most two versions serve."""
    world = started()
    world.until("v43", 2500)
    world.want(v42=0, v43=0, v44=100)
    world.until("v44", 100)
    assert all(len(split) <= 2 for split in world.splits)
    assert world.splits[-2:] == [BASE, {"v42": 9900, "v44": 100}]
    assert world.state is not None
    assert world.state.history[0].outcome is Outcome.SUPERSEDED
    assert world.table is not None
    assert not world.table.rejected


def test_a_base_that_was_shrunk_grows_before_traffic_comes_back_to_it() -> None:
    """C43"""
    world = started()
    world.until("v43", 5000)
    ready(world, "v42", 5)
    world.want(v42=0, v43=0, v44=100)
    decision = world.tick()
    assert decision.reason == "WaitingForBase"
    assert decision.grow == {"v42": 10_000}
    ready(world, "v42", 10)
    world.until("v44", 100)


def test_the_rule_set_back_is_a_rollback_without_a_rejection() -> None:
    """C44"""
    world = at_five_percent()
    world.want(v42=100)
    state = world.until_finished()
    assert state.outcome is Outcome.ROLLED_BACK
    assert world.split == BASE
    assert world.table is not None
    assert not world.table.rejected


def test_another_end_for_the_same_canary_goes_on_from_its_share() -> None:
    world = started()
    world.until("v43", 2500)
    world.want(v42=40, v43=60)
    assert world.until_finished().outcome is Outcome.PROMOTED
    assert world.split == {"v42": 4000, "v43": 6000}
    shares = [split.get("v43", 0) for split in world.splits]
    assert shares == sorted(shares), "never back on the way"


def test_a_changed_digest_starts_over() -> None:
    """FL#30"""
    world = started()
    world.until("v43", 5000)
    world.versions = {**world.versions, "v43": VersionFacts(digest="sha256:other", ready=10)}
    world.tick()
    assert world.splits[4:6] == [BASE, RAMP[0]]


def test_edited_steps_apply_from_the_next_step() -> None:
    """C41"""
    world = at_five_percent()
    for _ in range(10):
        world.tick()
    assert world.state is not None
    before = world.state
    world.policy = replace(POLICY, steps=(Step(200), Step(1000), Step(10_000)), bake_seconds=60)
    world.generation += 1
    world.tick()
    assert world.state.id == before.id
    assert world.state.bake_seconds == 600
    world.until("v43", 1000)


def test_a_person_rolls_back_and_the_operator_adopts_it() -> None:
    """C53: also when the operator was away meanwhile."""
    world = at_five_percent()
    world.person_sets(BASE, rejects="v43")
    state = world.until_finished()
    assert state.outcome is Outcome.ROLLED_BACK
    assert "ada" in state.message
    assert world.split == BASE
    decision = world.tick()
    assert decision.degraded is not None
    assert decision.degraded.reason == "VersionRejected"


def test_a_person_promotes_by_hand_and_the_operator_adopts_it() -> None:
    world = at_five_percent()
    world.person_sets({"v43": 10_000})
    assert world.until_finished().outcome is Outcome.FAST_PROMOTED
    assert world.split == {"v43": 10_000}


def test_a_pause_is_no_split_of_a_persons_own() -> None:
    """The table's last split is still the person's; a later note in it is not another one."""
    world = at_five_percent()
    world.person_sets(BASE, rejects="v43")
    world.until_finished()
    ready(world, "v44", 0)
    world.want(v42=0, v44=100)
    world.tick()
    world.control(paused=True)
    for _ in range(3):
        world.tick()
    assert world.state is not None
    assert not world.state.is_finished
    world.control(paused=False)
    ready(world, "v44", 10)
    world.until("v44", 100)


def test_without_a_gateway_nothing_is_judged() -> None:
    world = started()
    world.gateways = {}
    for _ in range(5):
        decision = world.tick()
    assert decision.reason == "Confirming"
    assert decision.judge is None


def test_a_third_version_keeps_its_share_when_base_dies() -> None:
    table = TableFacts(split={"v42": 9000, "v44": 1000}, generation=1)
    world = World(table=table, goal={"v42": 9000, "v44": 1000})
    world.want(v43=90, v44=10)
    world.until("v43", 450)
    ready(world, "v42", 0)
    for _ in range(4):
        world.tick()
    assert world.split == {"v43": 9000, "v44": 1000}


def test_a_split_of_a_persons_own_stays() -> None:
    world = at_five_percent()
    world.person_sets({"v42": 3000, "v43": 7000})
    assert world.until_finished().outcome is Outcome.ABORTED
    for _ in range(10):
        world.tick()
    assert world.split == {"v42": 3000, "v43": 7000}


def test_promote_skips_the_judge_but_not_the_replicas_nor_a_breach() -> None:
    """C49, AR#4461, FL#1149"""
    world = at_five_percent()
    world.kind = VerdictKind.THIN
    ready(world, "v43", 4)
    world.control(promote_step=5)
    world.tick()
    assert world.split == RAMP[1]
    assert world.last is not None
    assert world.last.reason == "WaitingForCapacity"
    promoted = World(**{**vars(world)})
    world.person_sets(BASE, rejects="v43")
    world.tick(1)
    assert world.split == BASE
    ready(promoted, "v43", 10)
    state = promoted.until_finished()
    assert state.outcome is Outcome.FAST_PROMOTED
    assert "ada" in state.message
    breached = at_five_percent()
    breached.control(promote_step=5)
    breached.kind = VerdictKind.BREACH
    assert breached.until_finished().outcome is Outcome.REJECTED


def test_a_command_typed_for_another_rollout_does_nothing() -> None:
    """C04"""
    world = at_five_percent()
    world.control(promote_step=5)
    assert world.table is not None
    assert world.table.control is not None
    world.table = replace(world.table, control=replace(world.table.control, rollout_id="another"))
    world.tick()
    assert world.split == RAMP[1]


@pytest.mark.parametrize("by_rule", [True, False], ids=["spec.paused", "tidewheel pause"])
def test_a_pause_stops_weight_and_clock_and_a_breach_still_rolls_back(by_rule: bool) -> None:
    """C14, C50, C52"""
    world = at_five_percent()
    world.tick()
    assert world.state is not None
    baked = world.state.baked_seconds
    if by_rule:
        world.paused = True
    else:
        world.control(paused=True)
    for _ in range(100):
        decision = world.tick()
    assert decision.suspended
    assert decision.stalled is None
    assert world.split == RAMP[1]
    assert world.state.baked_seconds == baked
    resumed = World(**{**vars(world)})
    resumed.paused = False
    resumed.control(paused=False)
    resumed.tick()
    assert resumed.state is not None
    assert resumed.state.baked_seconds == baked + 30, "an hour of pause is no bake"
    world.kind = VerdictKind.BREACH
    world.tick()
    assert world.split == BASE


def test_a_pause_may_forbid_the_rollback_loudly() -> None:
    world = at_five_percent()
    world.control(paused=True, no_rollback=True)
    world.kind = VerdictKind.BREACH
    decision = world.tick()
    assert world.split == RAMP[1]
    assert decision.degraded is not None
    assert "ada forbade" in decision.degraded.message


def test_a_dead_base_moves_everybody_to_the_canary_after_a_while() -> None:
    """AR#1774, #3110, #995; a blip of readiness moves nobody."""
    world = at_five_percent()
    ready(world, "v42", 0)
    assert world.tick(5).reason == "BaseDown"
    assert world.split == RAMP[1]
    blip = World(**{**vars(world)})
    ready(blip, "v42", 10)
    blip.tick(60)
    assert blip.split == RAMP[1]
    world.tick(60)
    assert world.split == {"v43": 10_000}
    held = at_five_percent(policy=replace(POLICY, on_base_down=Patience.HOLD))
    ready(held, "v42", 0)
    for _ in range(10):
        held.tick(60)
    assert held.split == RAMP[1]


def test_with_both_versions_dead_nothing_jumps() -> None:
    """AR#3888"""
    world = at_five_percent()
    ready(world, "v42", 0)
    ready(world, "v43", 0)
    for _ in range(10):
        world.tick()
    assert world.split == RAMP[1]


def test_a_breach_with_a_dead_base_pages_instead_of_moving_onto_nothing() -> None:
    """C47, FL#1898"""
    world = at_five_percent()
    ready(world, "v42", 0)
    world.kind = VerdictKind.BREACH
    decision = world.tick(5)
    assert decision.degraded is not None
    assert decision.degraded.reason == "NoHealthyTarget"
    assert world.split == RAMP[1]
    ready(world, "v42", 10)
    world.tick(5)
    assert world.split == BASE


def test_lost_progress_starts_the_step_again() -> None:
    """A restored backup without statuses: the split in force stays."""
    world = started()
    world.until("v43", 2500)
    for _ in range(10):
        world.tick()
    writes = len(world.splits)
    world.stored = None
    for _ in range(3):
        world.tick()
    assert world.split == RAMP[2]
    assert len(world.splits) == writes
    assert world.state is not None
    assert (world.state.step, world.state.baked_seconds <= 60) == (2, True)
    assert world.until_finished().outcome is Outcome.PROMOTED


def test_a_lost_write_is_written_again() -> None:
    world = at_five_percent()
    assert world.table is not None
    world.table = replace(world.table, split=RAMP[0], generation=world.table.generation + 1)
    world.tick()
    assert world.split == RAMP[1]


def test_a_third_version_at_a_fixed_share_keeps_it() -> None:
    world = World(table=TableFacts(split={"v42": 9000, "v44": 1000}, generation=1), goal={"v42": 9000, "v44": 1000})
    world.want(v43=90, v44=10)
    assert world.until_finished().outcome is Outcome.PROMOTED
    assert all(split["v44"] == 1000 for split in world.splits)
    assert [split["v43"] for split in world.splits] == [90, 450, 2250, 4500, 9000]


def test_two_versions_cannot_be_judged_at_once() -> None:
    world = World()
    world.want(v43=50, v44=50)
    decision = world.tick()
    assert decision.stalled is not None
    assert "one after the other" in decision.message
    assert world.split == BASE


def test_a_step_that_leaves_nothing_to_compare_with_cannot_bake() -> None:
    world = started(policy=replace(POLICY, steps=(*STEPS[:-1], Step(10_000, bake_seconds=60))))
    decision = world.tick()
    assert decision.stalled is not None
    assert "remove its bakeSeconds" in decision.message


def test_a_closed_change_window_holds_the_weight_and_not_the_way_back() -> None:
    window = change_window(start="09:00", end="12:05")
    world = started(policy=replace(POLICY, change_windows=(window,)))
    world.until("v43", 100)
    for _ in range(60):
        world.tick()
    assert world.split == RAMP[0]
    assert world.last is not None
    assert world.last.reason == "ChangeWindowClosed"
    assert world.last.wake_at is not None
    assert world.last.wake_at.hour == 9
    broken = World(**{**vars(world)})
    world.now = world.last.wake_at
    world.until("v43", 500)
    broken.person_sets(BASE, rejects="v43")
    broken.tick()
    assert broken.split == BASE


def test_windows_that_are_edited_in_mid_rollout_count_from_the_next_look_and_never_stop_a_bake() -> None:
    closed = (change_window(start="02:00", end="03:00"),)
    world = started()
    world.until("v43", 100)
    world.policy = replace(POLICY, change_windows=closed)
    for _ in range(40):
        world.tick()
    assert world.split == RAMP[0]
    assert world.state is not None
    assert (world.state.step, world.state.phase) == (1, Phase.WAITING_FOR_WINDOW)
    assert [event.reason for event in world.events].count("ChangeWindowClosed") == 1
    world.policy = POLICY
    world.tick()
    assert world.split == RAMP[1]


def test_what_does_not_fit_is_not_started_and_begins_once_it_does() -> None:
    world = started(gpus_free=9)
    world.versions = {name: replace(facts, present=10 * (name == "v42")) for name, facts in world.versions.items()}
    decision = world.tick()
    assert decision.stalled is not None
    assert decision.stalled.reason == "DoesNotFit"
    assert "Free 1 GPUs, or set rollout.onCapacity: Replace" in decision.message
    assert world.state is None
    world.gpus_free = 10
    world.until("v43", 100)


def test_replace_walks_as_far_as_the_replicas_of_the_new_version_carry() -> None:
    world = started(on_capacity=OnCapacity.REPLACE, policy=replace(POLICY, steps=(Step(5000), Step(10_000))))
    shares = []
    for replicas in range(6):
        ready(world, "v43", replicas)
        world.tick()
        shares.append(world.split.get("v43", 0))
    assert shares == [0, 1000, 2000, 3000, 4000, 5000]
    assert world.state is not None
    assert world.state.baked_seconds == 0
    assert [event.reason for event in world.events].count("MakingRoom") == 4


def test_under_replace_a_third_version_takes_over_as_base_regrows() -> None:
    world = started(on_capacity=OnCapacity.REPLACE, policy=replace(POLICY, steps=(Step(5000), Step(10_000))))
    world.until("v43", 5000)
    ready(world, "v42", 5)
    world.want(v44=100)
    world.tick()
    assert world.split == {"v42": 5000, "v43": 5000}
    ready(world, "v42", 8)
    world.tick()
    assert world.split == {"v42": 8000, "v43": 2000}
    ready(world, "v42", 10)
    world.until("v44", 5000)


def test_history_keeps_ten_rollouts() -> None:
    world = World(policy=RolloutPolicy())
    for number in range(15):
        world.want(v42=number % 2 * 100, v43=100 - number % 2 * 100)
        world.until_finished()
    assert world.state is not None
    assert len(world.state.history) == 10


def test_an_idle_rule_does_nothing() -> None:
    """AR#1292, #2982, C38"""
    world = World()
    decision = world.tick()
    assert decision.reason == "UpToDate"
    assert decision.split is None
    assert world.splits == []


def test_after_a_rollback_nothing_of_the_step_is_left() -> None:
    """KR#339, kubevela#7170"""
    world = rejected()
    assert world.state is not None
    assert world.state.phase is Phase.FINISHED
    world.want(v42=0, v44=100)
    world.tick()
    assert world.state.step == 0
    assert world.state.baked_seconds == 0
    assert world.state.canary == "v44"


def test_state_survives_json_and_nothing_else_is_read_as_state() -> None:
    world = at_five_percent()
    for _ in range(3):
        world.tick()
    state = world.state
    assert state is not None
    assert from_json(to_json(state)) == state
    assert to_json(state)["phaseSince"].endswith("Z")
    for damaged in ({}, {**to_json(state), "phase": "Dancing"}, {**to_json(state), "startedAt": "yesterday"}):
        with pytest.raises(StateError, match="starts again"):
            from_json(damaged)


def test_one_event_per_transition() -> None:
    """C54: a thousand looks at the same hold are one event."""
    world = at_five_percent()
    world.kind = VerdictKind.THIN
    before = len(world.events)
    for _ in range(200):
        world.tick()
    reasons = [event.reason for event in world.events[before:]]
    assert len(reasons) <= 3, reasons

"""Two versions and too few GPUs for both: what is refused before it starts, and how one makes room for the other."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.operator.rollouts.world import World

from tidewheel.clients.resources import ROUTING_RULES
from tidewheel.rollout.judge.findings import VerdictKind

SHORT: dict[str, Any] = {"steps": ({"percent": 50}, {"percent": 100}), "rollout": {"bakeSeconds": 60}}
REPLACE: dict[str, Any] = {**SHORT, "rollout": {"bakeSeconds": 60, "onCapacity": "Replace"}}
FULL = 3


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def _serving_v42(world: World, *, gpus: int) -> None:
    world.gpus = gpus
    world.apply_version("v42", replicas=FULL)
    world.apply_rule(v42=100)
    world.settle()
    assert world.serving("v42") == FULL
    world.apply_version("v43", replicas=FULL)


def _need(share: int) -> int:
    return -(-(share - 1) * FULL // 10_000)


def _tick(world: World) -> None:
    """One look at a time, so that no state in between goes by unseen."""
    world.tick()
    split = world.split()
    assert sum(split.values()) == 10_000
    for version, share in split.items():
        assert world.serving(version) >= min(_need(share), FULL), (split, world.placed())
    assert world.gpus is None or len(world.placed()) <= world.gpus


def test_what_does_not_fit_is_refused_before_anything_moves_with_both_ways_out(world: World) -> None:
    _serving_v42(world, gpus=2 * FULL - 1)
    world.apply_rule(v43=100, **SHORT)
    for _ in range(3):
        world.tick()
    status, reason = world.condition("Stalled")
    message = next(c["message"] for c in world.rule()["status"]["conditions"] if c["type"] == "Stalled")
    assert (status, reason) == ("True", "DoesNotFit")
    assert "need 6 GPUs at the widest step, the pool has 5" in message
    assert "Free 1 GPUs, or set rollout.onCapacity: Replace" in message
    assert world.condition("Ready")[0] == "False"
    assert world.split() == {"v42": 10_000}
    assert "v43" not in (world.rollout() or {}).get("to", {})


def test_a_refused_rollout_begins_by_itself_once_there_is_room(world: World) -> None:
    _serving_v42(world, gpus=2 * FULL - 1)
    world.apply_rule(v43=100, **SHORT)
    world.tick()
    assert world.condition("Stalled")[1] == "DoesNotFit"
    world.gpus = 2 * FULL
    assert world.until_finished()["outcome"] == "Promoted"
    assert world.condition("Stalled")[0] == "False"


def test_an_operator_without_a_budget_finds_out_by_waiting(world: World) -> None:
    _serving_v42(world, gpus=2 * FULL)
    world.gpus = None
    world.apply_rule(v43=100, **SHORT)
    assert world.until_finished()["outcome"] == "Promoted"


@pytest.mark.parametrize("room", [1, 3])
def test_replace_needs_room_for_one_replica_and_serves_every_share_in_full(world: World, room: int) -> None:
    _serving_v42(world, gpus=FULL + room)
    world.apply_rule(v43=100, **REPLACE)
    shares = []
    for _ in range(120):
        _tick(world)
        shares.append(world.split().get("v43", 0))
        if (world.rollout() or {}).get("outcome"):
            break
    world.tick()
    assert (world.rollout() or {}).get("outcome") == "Promoted", world.rollout()
    assert shares == sorted(shares)
    assert world.split() == {"v43": 10_000}
    assert (world.serving("v42"), world.serving("v43")) == (0, FULL)
    told = [message for reason, message in world.events if reason == "MakingRoom"]
    assert room > 1 or any("v42 makes room for the next (onCapacity: Replace)" in message for message in told)
    assert world.table()["spec"].get("keepWarm", []) == []
    assert world.condition("RollbackArmed") == ("False", "PreviousNotReady")


def test_replace_is_refused_where_nothing_is_free(world: World) -> None:
    _serving_v42(world, gpus=FULL)
    world.apply_rule(v43=100, **REPLACE)
    for _ in range(3):
        world.tick()
    assert world.condition("Stalled") == ("True", "DoesNotFit")
    assert world.serving("v42") == FULL
    assert "v43" not in world.placed()


def test_a_breach_under_replace_goes_back_at_once_and_base_grows_into_the_room(world: World) -> None:
    _serving_v42(world, gpus=FULL + 1)
    world.apply_rule(v43=100, **REPLACE)
    world.until("v43", 5000)
    assert world.serving("v42") < FULL
    assert world.condition("RollbackArmed") == ("False", "BaseShrunk")
    world.kind = VerdictKind.BREACH
    world.tick()
    assert world.split() == {"v42": 10_000}
    for _ in range(5):
        world.tick()
    assert (world.serving("v42"), world.serving("v43")) == (FULL, 0)
    assert world.condition("Degraded") == ("True", "VersionRejected")


def test_a_third_version_under_replace_waits_until_base_has_regrown_part_by_part(world: World) -> None:
    _serving_v42(world, gpus=FULL + 1)
    world.apply_rule(v43=100, **REPLACE)
    world.until("v43", 5000)
    world.apply_version("v44", replicas=FULL)
    world.apply_rule(v44=100, **REPLACE)
    for _ in range(200):
        _tick(world)
        assert not {"v43", "v44"} <= world.split().keys()
        if world.split() == {"v44": 10_000}:
            break
    assert world.split() == {"v44": 10_000}
    history = [entry["outcome"] for entry in (world.rollout() or {})["history"]]
    assert "Superseded" in history


def test_progress_that_is_lost_between_two_steps_keeps_the_way_back(world: World) -> None:
    _serving_v42(world, gpus=FULL + 1)
    world.apply_rule(v43=100, **REPLACE)
    for _ in range(40):
        world.now += timedelta(seconds=30)
        world.judge()
        world.look()
        if 0 < world.split().get("v43", 0) < 5000:
            break
        world.kubelet()
        world.follow()
    assert 0 < world.split()["v43"] < 5000
    rule = world.rule()
    world.store.put(ROUTING_RULES, {**rule, "status": {}})
    world.start_operator()
    world.tick()
    rollout = world.rollout()
    assert rollout is not None
    assert rollout["from"] == {"v42": 10_000}
    assert world.until_finished()["outcome"] == "Promoted"

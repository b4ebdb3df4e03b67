"""Replicas of one version: what is created, drained and deleted, and what never is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.builders import NOW, SETTINGS, ago, ahead, load, owned_by, pod, version

from tidewheel.operator.planning.actions import AdoptPod, CreatePod, DeletePod, OpenGate, StartDrain
from tidewheel.operator.planning.pool import PoolPlan, plan_pool
from tidewheel.operator.planning.records import LoadReading, PodRecord, Termination, VersionRecord
from tidewheel.operator.planning.victims import choose_victims

V1 = version("v1", drain={"timeoutSeconds": 600})


def plan(
    *pods: PodRecord, desired: int, loads: Mapping[str, LoadReading] | None = None, of: VersionRecord = V1
) -> PoolPlan:
    return plan_pool(of, pods=pods, desired=desired, reason="test", loads=loads or {}, now=NOW, settings=SETTINGS)


def created(made: PoolPlan) -> list[str]:
    return [action.manifest["metadata"]["name"] for action in made.actions if isinstance(action, CreatePod)]


def on_pods(made: PoolPlan, kind: type[DeletePod | StartDrain | OpenGate | AdoptPod]) -> list[str]:
    return [action.pod.meta.name for action in made.actions if isinstance(action, kind)]


def test_missing_replicas_fill_the_lowest_free_slots() -> None:
    assert created(plan(pod(V1, 1), desired=3)) == ["chat-v1-0-0", "chat-v1-2-0"]


@pytest.mark.parametrize("state", ["terminating", "draining"])
def test_a_pod_that_leaves_does_not_hold_its_slot_even_if_its_node_never_confirms(state: str) -> None:
    stuck = pod(V1, 0, state=state, since=3600 if state == "terminating" else 10)
    busy = load(stuck, 5)
    assert created(plan(stuck, pod(V1, 1), desired=2, loads=busy)) == ["chat-v1-0-1"]


def test_the_gate_of_a_new_pod_is_opened_once() -> None:
    assert on_pods(plan(pod(V1, state="new"), desired=1), OpenGate) == ["chat-v1-0-0"]
    assert not plan(pod(V1, state="loading"), desired=1).actions


def test_a_surplus_replica_that_serves_nobody_yet_is_deleted_at_once_and_is_preferred() -> None:
    """aibrix#2549, aibrix#2405: one of four is not ready, and four become three: that one goes."""
    made = plan(*(pod(V1, slot) for slot in range(3)), pod(V1, 3, state="loading"), desired=3)
    assert on_pods(made, DeletePod) == ["chat-v1-3-0"]
    assert not on_pods(made, StartDrain)


def test_the_replica_with_the_fewest_streams_is_drained_not_deleted() -> None:
    pods = [pod(V1, slot) for slot in range(3)]
    loads = {**load(pods[0], 7), **load(pods[1], 1), **load(pods[2], 9)}
    made = plan(*pods, desired=2, loads=loads)
    assert on_pods(made, StartDrain) == ["chat-v1-1-0"]
    assert not on_pods(made, DeletePod)


def test_no_victim_is_chosen_before_its_streams_are_known() -> None:
    pods = [pod(V1, slot) for slot in range(2)]
    made = plan(*pods, desired=1)
    assert not made.actions
    assert list(made.polled) == pods
    assert made.wake_at


def test_an_engine_that_does_not_answer_counts_as_the_busiest() -> None:
    pods = [pod(V1, 0), pod(V1, 1)]
    loads = {**load(pods[0], None), **load(pods[1], 40)}
    assert choose_victims(pods, 1, loads) == (pods[1],)


def test_replicas_that_leave_already_are_asked_once() -> None:
    """dask-kubernetes#635, grove#759: 4 -> 2 -> 1 while two drain."""
    pods = [pod(V1, 0), pod(V1, 1), pod(V1, 2, state="draining", since=5), pod(V1, 3, state="draining", since=5)]
    loads: dict[str, LoadReading] = {}
    for each, streams in zip(pods, (0, 3, 2, 2), strict=True):
        loads |= load(each, streams)
    assert on_pods(plan(*pods, desired=1, loads=loads), StartDrain) == ["chat-v1-0-0"]


def test_scaling_to_zero_drains_every_replica_without_asking_first() -> None:
    pods = [pod(V1, slot) for slot in range(2)]
    assert sorted(on_pods(plan(*pods, desired=0), StartDrain)) == ["chat-v1-0-0", "chat-v1-1-0"]


DRAINS = {
    "streams are open": ({"since": 100}, {"streams": 2}, False),
    "idle, and told so": ({"since": 100}, {"streams": 0}, True),
    "idle, but gateways may not know yet": ({"since": 1}, {"streams": 0}, False),
    "idle, but still open for new work": ({"since": 100}, {"streams": 0, "draining": False}, False),
    "idle was said before the gate was known closed": ({"since": 4}, {"streams": 0, "at": 3}, False),
    "unknown is not idle": ({"since": 100}, {"streams": None}, False),
    "never asked": ({"since": 100}, None, False),
    "time is over with open streams": ({"since": 601}, {"streams": 2}, True),
    "time is over and nothing is known": ({"since": 601}, None, True),
}


@pytest.mark.parametrize(("drain", "reading", "goes"), DRAINS.values(), ids=DRAINS)
def test_a_draining_replica_goes_when_it_is_idle_or_its_time_is_over(
    drain: dict[str, Any], reading: dict[str, Any] | None, goes: bool
) -> None:
    leaving = pod(V1, 0, state="draining", **drain)
    made = plan(leaving, desired=0, loads=load(leaving, **reading) if reading else {})
    assert on_pods(made, DeletePod) == (["chat-v1-0-0"] if goes else [])
    assert list(made.polled) == ([] if goes else [leaving])


def test_a_draining_replica_whose_engine_is_not_running_goes_at_once() -> None:
    leaving = pod(V1, 0, state="draining", since=1)
    dead = replace(leaving, engine=replace(leaving.engine, started=False))
    assert on_pods(plan(dead, desired=0), DeletePod) == ["chat-v1-0-0"]


def test_the_planner_asks_to_be_woken_when_the_drain_is_over() -> None:
    leaving = pod(V1, 0, state="draining", since=595)
    assert min(plan(leaving, desired=0, loads=load(leaving, 1)).wake_at) == ahead(5)


def test_pods_of_a_recreated_version_with_the_same_digest_are_adopted_and_not_restarted() -> None:
    made = plan(owned_by(pod(V1), "uid-before"), desired=1)
    assert on_pods(made, AdoptPod) == ["chat-v1-0-0"]
    assert not created(made)


def test_pods_of_another_digest_are_not_counted_but_hold_their_names() -> None:
    """grove#783: delete and create with the same name in 100 ms: the new one gets its own children."""
    before = version("v1", engine={"image": "tidewheel:0"})
    assert created(plan(pod(before), desired=1)) == ["chat-v1-0-1"]


FAILED = {
    "too early": (pod(V1, 0, 2, state="failed", since=1), [], []),
    "after the back-off": (pod(V1, 0, 2, state="failed", since=60), ["chat-v1-0-3"], ["chat-v1-0-2"]),
    "slot no longer wanted": (pod(V1, 5, 0, state="failed", since=1), ["chat-v1-0-0"], ["chat-v1-5-0"]),
}


@pytest.mark.parametrize(("failed", "creates", "deletes"), FAILED.values(), ids=FAILED)
def test_a_pod_ended_by_its_node_is_replaced_after_a_back_off(
    failed: PodRecord, creates: list[str], deletes: list[str]
) -> None:
    made = plan(failed, desired=1)
    assert created(made) == creates
    assert on_pods(made, DeletePod) == deletes


def test_the_back_off_grows_with_every_incarnation() -> None:
    ended = Termination(exit_code=137, finished=ago(100))
    failed = pod(V1, 0, 5, state="failed", since=1000)
    waiting = replace(failed, engine=replace(failed.engine, terminated=ended))
    made = plan(waiting, desired=1)
    assert not made.actions
    assert made.wake_at == (ahead(60),)


def names(pods: Sequence[PodRecord]) -> list[str]:
    return [each.meta.name for each in pods]


def test_victims_unscheduled_before_loading_before_serving_then_youngest() -> None:
    old, young = pod(V1, 0, since=900), pod(V1, 1, since=90)
    loading, pending = pod(V1, 2, state="loading"), pod(V1, 3, state="new")
    loads = {**load(old, 1), **load(young, 1)}
    assert names(choose_victims([old, young, loading, pending], 3, loads)) == [
        "chat-v1-3-0",
        "chat-v1-2-0",
        "chat-v1-1-0",
    ]

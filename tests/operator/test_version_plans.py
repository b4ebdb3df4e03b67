"""A version's life: finalizer, Service, replicas by the table, what is left when it is gone, what its status says."""

from dataclasses import replace

import pytest
from tests.operator.builders import KEY, NOW, SETTINGS, load, picture, pod, rule, table, version

from tidewheel.crds.modelversion import ModelVersionStatus, Phase
from tidewheel.operator.planning.actions import (
    Action,
    AddFinalizer,
    ApplyService,
    CreatePod,
    DeletePod,
    DeleteService,
    RemoveFinalizer,
    StartDrain,
)
from tidewheel.operator.planning.model import plan_model, plan_version_status
from tidewheel.operator.planning.records import Picture, VersionRecord
from tidewheel.operator.planning.verdicts import Finding

V1 = version("v1", replicas=1)


def actions(of: Picture, subject: str = "v1") -> list[Action]:
    chains = plan_model(of, settings=SETTINGS, new_salt="salt").chains
    return [action for chain in chains if chain.subject == subject for action in chain.actions]


def kinds(of: Picture, subject: str = "v1") -> list[type[Action]]:
    return [type(action) for action in actions(of, subject)]


def status(of: Picture, failures: dict[str, Finding] | None = None, name: str = "v1") -> ModelVersionStatus:
    made = plan_model(of, settings=SETTINGS, new_salt="salt")
    return plan_version_status(of.versions[name], made, of, failures or {})


def conditions(found: ModelVersionStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status.value, each.reason) for each in found.conditions}


def in_force(of: VersionRecord, **weights: int) -> Picture:
    return picture(of, pods=(pod(of),), table=table({of.version: of}, **(weights or {of.version: 10_000})))


def test_the_finalizer_comes_before_anything_that_it_protects() -> None:
    fresh = version("v1", replicas=1, held=False)
    assert kinds(picture(fresh, services=False)) == [AddFinalizer, ApplyService, CreatePod]


def test_at_rest_nothing_is_done() -> None:
    answered = rule(v1=100)
    at_rest = picture(V1, pods=(pod(V1),), rule=answered, table=table({"v1": V1}, answered=answered, v1=10_000))
    assert plan_model(at_rest, settings=SETTINGS, new_salt="other").chains == ()


def test_the_status_at_rest_is_written_once() -> None:
    """strimzi#13079: a status that differs from itself is a hot loop."""
    at_rest = picture(V1, pods=(pod(V1),))
    first = status(at_rest)
    later = replace(at_rest, versions={"v1": replace(V1, status=first)}, now=NOW.replace(hour=20))
    assert status(later) == first


def test_a_deleted_version_is_held_while_it_carries_weight_and_its_replicas_are_replaced() -> None:
    """A promotion commit in Git usually deletes the old version's file in the same commit."""
    leaving = version("v1", replicas=2, deleting=True)
    seen = picture(leaving, pods=(pod(leaving),), table=table({"v1": leaving}, v1=10_000))
    assert kinds(seen) == [CreatePod]
    assert conditions(status(seen))["Reconciling"] == ("True", "InService")


def test_a_deleted_version_is_held_while_it_is_kept_warm() -> None:
    leaving = version("v1", replicas=1, deleting=True)
    warm = table({"v1": leaving}, warm={"v1": (10_000, 60)}, v2=10_000)
    assert kinds(picture(leaving, pods=(pod(leaving),), table=warm)) == []


def test_a_deleted_version_out_of_service_drains_then_loses_its_service_then_goes() -> None:
    leaving = version("v1", replicas=1, deleting=True)
    serving = pod(leaving)
    assert kinds(picture(leaving, pods=(serving,))) == [StartDrain]
    draining = pod(leaving, state="draining", since=100)
    assert kinds(picture(leaving, pods=(draining,), loads=load(draining, 3))) == []
    assert kinds(picture(leaving, pods=(draining,), loads=load(draining, 0))) == [DeletePod]
    assert kinds(picture(leaving)) == [DeleteService]
    assert kinds(picture(leaving, services=False)) == [RemoveFinalizer]


def test_a_pod_that_a_vanished_node_will_never_confirm_does_not_hold_the_version() -> None:
    leaving = version("v1", replicas=1, deleting=True)
    stuck = pod(leaving, state="terminating", since=3600)
    assert kinds(picture(leaving, pods=(stuck,), services=False)) == [RemoveFinalizer]


def test_in_a_terminating_namespace_nothing_is_created_and_finalizers_go() -> None:
    """tigera/operator#3791, awx-operator#228."""
    leaving, staying = version("v1", replicas=3, deleting=True), version("v2", replicas=3, held=False)
    seen = picture(leaving, staying, services=False, namespace_terminating=True)
    chains = plan_model(seen, settings=SETTINGS, new_salt="salt").chains
    assert [type(action) for chain in chains for action in chain.actions] == [RemoveFinalizer]


GONE = {
    "carries weight": ({"v1": 10_000}, {}, []),
    "kept warm": ({"v2": 10_000}, {"v1": (10_000, 60.0)}, []),
    "neither": ({"v2": 10_000}, {}, [StartDrain]),
}


@pytest.mark.parametrize(("weights", "warm", "wanted"), GONE.values(), ids=GONE)
def test_pods_whose_version_is_gone_stay_only_while_they_are_needed(
    weights: dict[str, int], warm: dict[str, tuple[int, float]], wanted: list[type[Action]]
) -> None:
    seen = picture(pods=(pod(V1),), table=table({"v1": V1}, warm=warm, **weights))
    assert kinds(seen) == wanted


def test_the_service_of_a_version_that_is_gone_goes_with_its_last_pod() -> None:
    left = picture(V1, pods=())
    assert kinds(replace(left, versions={})) == [DeleteService]


def test_a_recreated_version_with_another_spec_gets_its_own_pods_and_the_old_ones_serve_until_then() -> None:
    before, after = V1, version("v1", uid="uid-new", replicas=1, engine={"image": "tidewheel:2"})
    weights = table({"v1": before}, v1=10_000)
    start = picture(after, pods=(pod(before),), table=weights)
    assert kinds(start) == [ApplyService, CreatePod], "the Service keeps pointing at the pods that serve"
    both = picture(after, pods=(pod(before), pod(after, 0, 1)), table=weights)
    assert kinds(both) == [StartDrain]


def test_an_unreadable_spec_leaves_the_pods_alone_and_says_so() -> None:
    broken = VersionRecord(
        meta=V1.meta, model=KEY.model, version="v1", spec=None, invalid="spec.engine.dtype: not one of ours"
    )
    seen = picture(broken, pods=(pod(V1),), services=False)
    assert kinds(seen) == []
    found = conditions(status(seen))
    assert found["Accepted"] == ("False", "InvalidSpec")
    assert found["Stalled"][0] == "True"
    assert found["Ready"][0] == "False"


def test_a_pending_move_never_shrinks_the_version_that_serves() -> None:
    """kserve#5983: the canary's pods are slow to start, and the stable version must not shrink meanwhile."""
    base, canary = version("v1", replicas=1), version("v2", replicas=1)
    serving = tuple(pod(base, slot) for slot in range(3))
    seen = picture(
        base,
        canary,
        pods=(*serving, pod(canary, state="loading")),
        rule=rule(generation=2, v2=100),
        table=table({"v1": base}, answered=rule(v1=100), v1=10_000),
    )
    assert kinds(seen, "v1") == []


PHASES = {
    "idle": (picture(version("v1")), Phase.IDLE),
    "loading": (picture(V1, pods=(pod(V1, state="loading"),)), Phase.LOADING),
    "ready without traffic": (picture(V1, pods=(pod(V1),)), Phase.READY),
    "all traffic": (in_force(V1), Phase.STABLE),
    "a little traffic": (
        picture(V1, pods=(pod(V1),), table=table({"v1": V1}, v1=1_000, v2=9_000)),
        Phase.CANARY,
    ),
    "deleted": (picture(version("v1", deleting=True)), Phase.RETIRED),
}


@pytest.mark.parametrize(("seen", "phase"), PHASES.values(), ids=PHASES)
def test_phases(seen: Picture, phase: Phase) -> None:
    assert status(seen).phase is phase


def test_ready_needs_every_part() -> None:
    """kserve#6043: one part that is not True keeps the whole from being Ready."""
    two = version("v1", replicas=2)
    found = status(picture(two, pods=(pod(two, 0), pod(two, 1, state="loading"))))
    assert conditions(found)["Ready"] == ("False", "Loading")
    assert conditions(found)["Reconciling"][0] == "True"
    assert (found.ready, found.replicas, found.ready_replicas) == ("1/2", 2, 1)
    assert conditions(status(picture(V1, pods=(pod(V1),))))["Ready"] == ("True", "AllReplicasReady")


def test_a_refusal_of_the_api_server_is_quoted() -> None:
    words = "the API server refused: pods chat-v1-0-0 is forbidden: exceeded quota: gpus"
    found = status(picture(V1), {"v1": Finding("QuotaExceeded", words)})
    assert conditions(found)["Degraded"] == ("True", "QuotaExceeded")
    assert next(each.message for each in found.conditions if each.type == "Ready") == words


def test_streams_of_draining_replicas_are_counted() -> None:
    leaving = version("v1", replicas=1, deleting=True)
    draining = pod(leaving, state="draining", since=100)
    found = status(picture(leaving, pods=(draining,), loads=load(draining, 5)))
    assert (found.draining_replicas, found.active_streams) == (1, 5)

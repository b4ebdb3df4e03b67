"""Objects in every state that docs/gitops.md names, with statuses as the operator's own planner writes them."""

from dataclasses import dataclass, replace
from typing import Any, Final

from tests.operator.builders import SETTINGS, ago, picture, pod, rule, table, version

from tidewheel.crds.names import GROUP_VERSION
from tidewheel.operator.planning.model import plan_model, plan_rule_status, plan_version_status
from tidewheel.operator.planning.records import Picture, RuleRecord, VersionRecord

Wire = dict[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """One object, and what Argo CD and kstatus are to make of it."""

    name: str
    item: Wire
    argo: str
    kstatus: str


def rule_object(of: Picture, **spec: Any) -> Wire:
    """The RoutingRule of a picture as it lies in the cluster after the operator looked at it."""
    assert of.rule is not None
    status = plan_rule_status(of.rule, plan_model(of, settings=SETTINGS, new_salt="s"), of, {})
    assert status is not None
    return _object("RoutingRule", of.rule, status.to_wire(), **spec)


def version_object(of: Picture, name: str = "v1") -> Wire:
    """A ModelVersion of a picture, likewise."""
    found = of.versions[name]
    status = plan_version_status(found, plan_model(of, settings=SETTINGS, new_salt="s"), of, {})
    return _object("ModelVersion", found, status.to_wire())


def in_rollout(item: Wire, *, reconciling: bool = True, stalled: str = "", degraded: str = "", **rollout: Any) -> Wire:
    """The rule while a rollout runs: the same conditions as any other move, and the rollout's own fields."""
    conditions = {entry["type"]: dict(entry) for entry in item["status"]["conditions"]}
    for kind, on, reason in (
        ("Reconciling", reconciling, "Baking"),
        ("Stalled", bool(stalled), stalled or "Progressing"),
        ("Degraded", bool(degraded), degraded or "AsExpected"),
        ("Ready", False, "Baking"),
    ):
        conditions[kind] |= {"status": "True" if on else "False", "reason": reason, "message": f"{kind} in words"}
    progress = {"id": "r1", "phase": "Baking", "step": 0, "steps": 5, "message": "v1:99% v2:1% baked 30/600 s"}
    status = {**item["status"], "rollout": {**progress, **rollout}, "conditions": list(conditions.values())}
    return {**item, "status": status}


def _object(kind: str, record: RuleRecord | VersionRecord, status: Wire, **spec: Any) -> Wire:
    meta = record.meta
    metadata: Wire = {"namespace": meta.namespace, "name": meta.name, "generation": meta.generation, "uid": meta.uid}
    if meta.deleting is not None:
        metadata["deletionTimestamp"] = meta.deleting.isoformat()
    written = record.spec.to_wire() if record.spec is not None else {}
    return {
        "apiVersion": GROUP_VERSION,
        "kind": kind,
        "metadata": metadata,
        "spec": {**written, **spec},
        "status": status,
    }


def _unseen(item: Wire) -> Wire:
    """As the API server returns it right after it was created: the CRD's default status."""
    return {**item, "status": {"observedGeneration": -1}}


def _edited(item: Wire) -> Wire:
    return {**item, "metadata": {**item["metadata"], "generation": item["metadata"]["generation"] + 1}}


V1, V2 = version("v1", replicas=1), version("v2", replicas=1, engine={"image": "tidewheel:2"})
BOTH = {"v1": V1, "v2": V2}
PODS = (pod(V1), pod(V2))
WANTS_V2 = rule(generation=2, v1=0, v2=100)
ON_V2 = table(BOTH, answered=WANTS_V2, previous={"v1": 10_000}, warm={"v1": (10_000, 600)}, v2=10_000)
ON_V1 = table(BOTH, answered=rule(v1=100), v1=10_000)
READY = rule_object(picture(V1, V2, pods=PODS, rule=WANTS_V2, table=ON_V2))
MOVING = rule_object(picture(V1, V2, pods=(pod(V1), pod(V2, state="loading")), rule=WANTS_V2, table=ON_V1))
REJECTED = rule_object(
    picture(
        V1,
        V2,
        pods=PODS,
        rule=WANTS_V2,
        table=table(BOTH, answered=WANTS_V2, previous={"v2": 10_000}, rejected=("v2",), actor="ada", v1=10_000),
    )
)
MISSING = rule_object(picture(V1, pods=(pod(V1),), rule=rule(generation=2, v9=100), table=ON_V1))
UNSERVED = rule_object(picture(V1, V2, pods=(pod(V1),), rule=WANTS_V2, table=ON_V2))
DELETED = {**READY, "metadata": {**READY["metadata"], "deletionTimestamp": "2026-11-30T12:00:00Z"}}
BROKEN = replace(version("v1", replicas=1), spec=None, invalid="engine.image is missing")

RULE_STATES: Final = (
    State("just created", _unseen(READY), "Progressing", "InProgress"),
    State("edited a moment ago", _edited(READY), "Progressing", "InProgress"),
    State("waits for replicas", MOVING, "Progressing", "InProgress"),
    State("names a version that is not there yet", MISSING, "Progressing", "InProgress"),
    State("rollout bakes", in_rollout(MOVING), "Progressing", "InProgress"),
    State("rollout is paused by a person", in_rollout(MOVING, suspended=True), "Suspended", "InProgress"),
    State(
        "rollout is paused in Git",
        {**(paused := in_rollout(MOVING)), "spec": {**paused["spec"], "paused": True}},
        "Suspended",
        "InProgress",
    ),
    State(
        "rollout is held for too long",
        in_rollout(MOVING, reconciling=False, stalled="Held", suspended=True),
        "Suspended",
        "Failed",
    ),
    State(
        "rollout finds no room",
        in_rollout(MOVING, reconciling=False, stalled="InsufficientCapacity"),
        "Degraded",
        "Failed",
    ),
    State("nothing can be judged", in_rollout(MOVING, degraded="Blind"), "Degraded", "InProgress"),
    State("rolled back: the version is rejected", REJECTED, "Degraded", "Failed"),
    State("nobody serves what takes traffic", UNSERVED, "Degraded", "InProgress"),
    State("promoted", READY, "Healthy", "Current"),
    State("being deleted", DELETED, "Healthy", "Terminating"),
)

VERSION_STATES: Final = (
    State("just created", _unseen(version_object(picture(V1))), "Progressing", "InProgress"),
    State("starts", version_object(picture(V1, pods=(pod(V1, state="loading"),))), "Progressing", "InProgress"),
    State("serves", version_object(picture(V1, pods=(pod(V1),), table=ON_V1)), "Healthy", "Current"),
    State("idle", version_object(picture(version("v1", replicas=0))), "Healthy", "Current"),
    State(
        "scales down",
        version_object(picture(V1, pods=(pod(V1), pod(V1, slot=1, state="draining")), table=ON_V1)),
        "Progressing",
        "InProgress",
    ),
    State("cannot be run", version_object(picture(BROKEN)), "Degraded", "Failed"),
    State(
        "deleted while it carries traffic",
        version_object(picture(version("v1", replicas=1, deleting=True), pods=(pod(V1),), table=ON_V1, now=ago(0))),
        "Progressing",
        "Terminating",
    ),
)

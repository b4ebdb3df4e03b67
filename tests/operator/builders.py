"""Short builders for pictures: tables of cases stay tables."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tidewheel.crds.digest import digest
from tidewheel.crds.modelversion import ModelVersionSpec
from tidewheel.crds.names import IN_SERVICE_FINALIZER, UID_LABEL
from tidewheel.crds.routingrule import RoutingRuleSpec
from tidewheel.crds.routingtable import Cause, KeepWarm, Rejection, RoutingTableSpec, Target
from tidewheel.operator.moments import format_moment
from tidewheel.operator.planning.drain import DrainSettings
from tidewheel.operator.planning.labels import child_labels
from tidewheel.operator.planning.podmanifest import PodSettings, pod_name
from tidewheel.operator.planning.pool import PoolSettings
from tidewheel.operator.planning.records import (
    EngineContainer,
    LoadReading,
    Meta,
    ModelKey,
    Picture,
    PodCondition,
    PodPhase,
    PodRecord,
    RuleRecord,
    ServiceRecord,
    TableRecord,
    VersionRecord,
)
from tidewheel.operator.planning.service import service_manifest

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
KEY = ModelKey("shop", "chat")
SETTINGS = PoolSettings(pods=PodSettings(engine_token=True), drain=DrainSettings())


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def ahead(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def meta(name: str, **changes: Any) -> Meta:
    defaults: dict[str, Any] = {
        "namespace": KEY.namespace,
        "name": name,
        "uid": f"uid-{name}",
        "resource_version": "1",
        "generation": 1,
        "created": ago(600),
    }
    return Meta(**(defaults | changes))


def version(name: str, *, uid: str = "", deleting: bool = False, held: bool = True, **spec: Any) -> VersionRecord:
    """A ModelVersion chat-NAME; ``spec`` replaces top-level fields."""
    parsed = ModelVersionSpec.model_validate(
        {
            "model": KEY.model,
            "version": name,
            "artifact": {"uri": "file:///models/m.gguf"},
            "engine": {"image": "tidewheel:1"},
            **spec,
        }
    )
    return VersionRecord(
        meta=meta(
            f"{KEY.model}-{name}",
            uid=uid or f"uid-{name}",
            deleting=ago(1) if deleting else None,
            finalizers=(IN_SERVICE_FINALIZER,) if held else (),
        ),
        model=KEY.model,
        version=name,
        spec=parsed,
        digest=digest(parsed),
    )


def pod(
    of: VersionRecord,
    slot: int = 0,
    incarnation: int = 0,
    *,
    state: str = "ready",
    since: float = 60,
    **changes: Any,
) -> PodRecord:
    """A pod in a state: new, loading, ready, draining, terminating, failed; ``since`` is its age in seconds."""
    name = pod_name(of.meta.name, slot=slot, incarnation=incarnation)
    gate = None if state == "new" else PodCondition("True", "Serving", since=ago(since))
    serving = state in {"ready", "draining", "terminating"}
    if state in {"draining", "terminating"}:
        gate = PodCondition("False", "Draining", since=ago(since))
    defaults: dict[str, Any] = {
        "meta": meta(name, created=ago(since), deleting=ago(1) if state == "terminating" else None),
        "labels": child_labels(of),
        "slot": slot,
        "incarnation": incarnation,
        "phase": PodPhase.FAILED if state == "failed" else PodPhase.RUNNING if serving else PodPhase.PENDING,
        "ip": "10.0.0.1",
        "node": "" if state == "new" else "node-1",
        "ready": state == "ready",
        "gate": gate,
        "engine": EngineContainer(
            running_since=ago(since) if state not in {"new", "failed"} else None, started=serving
        ),
    }
    return PodRecord(**(defaults | changes))


def service(of: VersionRecord) -> ServiceRecord:
    """The Service as we would have made it."""
    manifest = service_manifest(of, digest=child_labels(of)["tidewheel.dev/digest"])
    return ServiceRecord(
        meta=meta(manifest["metadata"]["name"], uid=f"uid-service-{of.version}"),
        labels=manifest["metadata"]["labels"],
        selector=manifest["spec"]["selector"],
        ports=(("http", 8000),),
    )


def rule(
    *, generation: int = 1, uid: str = "uid-rule", keep: int = 900, deleting: bool = False, **percents: int
) -> RuleRecord:
    return RuleRecord(
        meta=meta(KEY.model, uid=uid, generation=generation, deleting=ago(1) if deleting else None),
        spec=RoutingRuleSpec.model_validate(
            {
                "model": KEY.model,
                "traffic": [{"version": name, "percent": percent} for name, percent in percents.items()],
                "rollout": {"keepPreviousSeconds": keep},
            }
        ),
    )


def table(
    versions: Mapping[str, VersionRecord],
    *,
    answered: RuleRecord | None = None,
    previous: Mapping[str, int] | None = None,
    warm: Mapping[str, tuple[int, float]] | None = None,
    rejected: tuple[str, ...] = (),
    orphaned: float | None = None,
    actor: str = "tidewheel-operator",
    **weights: int,
) -> TableRecord:
    """A table; ``warm`` maps a version to its weight and the seconds it stays; ``answered`` is the rule it answers."""
    return TableRecord(
        meta=meta(KEY.model, uid="uid-table"),
        spec=RoutingTableSpec(
            model=KEY.model,
            targets=[_target(versions, name, weight) for name, weight in weights.items()],
            previous=[_target(versions, name, weight) for name, weight in (previous or {}).items()],
            rule_uid=answered.meta.uid if answered else None,
            rule_generation=answered.meta.generation if answered else None,
            salt="salt",
            cause=Cause(actor=actor, reason="RuleApplied", at=format_moment(ago(600))),
            rejected=[
                Rejection(digest=versions[name].digest, version=name, reason="it was slow", at=format_moment(ago(60)))
                for name in rejected
            ],
            keep_warm=[
                KeepWarm(**{**dict(_target(versions, name, weight)), "until": format_moment(ahead(seconds))})
                for name, (weight, seconds) in (warm or {}).items()
            ],
            orphaned_at=None if orphaned is None else format_moment(ago(orphaned)),
        ),
    )


def _target(versions: Mapping[str, VersionRecord], name: str, weight: int) -> Target:
    found = versions.get(name)
    return Target(version=name, weight=weight, digest=found.digest if found else "sha256:gone")


def picture(
    *versions: VersionRecord,
    pods: tuple[PodRecord, ...] = (),
    services: bool = True,
    rule: RuleRecord | None = None,
    table: TableRecord | None = None,
    loads: Mapping[str, LoadReading] | None = None,
    **changes: Any,
) -> Picture:
    """A picture in which each version has its Service, unless ``services`` is false."""
    made = Picture(
        key=KEY,
        now=NOW,
        versions={each.version: each for each in versions},
        rule=rule,
        table=table,
        pods=pods,
        services={each.version: service(each) for each in versions} if services else {},
        loads=loads or {},
    )
    return replace(made, **changes)


def load(of: PodRecord, streams: int | None, *, draining: bool = True, at: float = 0.0) -> dict[str, LoadReading]:
    """A reading of a pod's load, ``at`` seconds ago."""
    return {of.meta.uid: LoadReading(at=ago(at), streams=streams, draining=draining)}


def owned_by(of: PodRecord, uid: str) -> PodRecord:
    """The same pod with another owner."""
    return replace(of, labels={**of.labels, UID_LABEL: uid})

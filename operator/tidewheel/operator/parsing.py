"""From the API server's objects to records."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tidewheel.clients.resources import (
    MODEL_VERSIONS,
    PODS,
    ROUTING_RULES,
    ROUTING_TABLES,
    SERVICES,
    KubeObject,
    Resource,
)
from tidewheel.crds.digest import digest
from tidewheel.crds.modelversion import ModelVersionSpec, ModelVersionStatus
from tidewheel.crds.names import SERVING_GATE
from tidewheel.crds.routingrule import RoutingRuleSpec, RoutingRuleStatus
from tidewheel.crds.routingtable import RoutingTableSpec
from tidewheel.operator.moments import parse_moment
from tidewheel.operator.planning.podmanifest import ENGINE_CONTAINER
from tidewheel.operator.planning.records import (
    AnyRecord,
    EngineContainer,
    Meta,
    PodCondition,
    PodPhase,
    PodRecord,
    RuleRecord,
    ServiceRecord,
    TableRecord,
    Termination,
    VersionRecord,
)

_Model = TypeVar("_Model", bound=BaseModel)


def parse_version(body: KubeObject) -> VersionRecord:
    """A ModelVersion; a spec that we cannot read gives a record that says so."""
    raw = body.get("spec") or {}
    spec, invalid = _validated(ModelVersionSpec, raw)
    status, _ = _validated(ModelVersionStatus, body.get("status") or {})
    return VersionRecord(
        meta=parse_meta(body),
        model=str(raw.get("model", "")),
        version=str(raw.get("version", "")),
        spec=spec,
        digest=digest(spec) if spec is not None else "",
        invalid=invalid,
        status=status or ModelVersionStatus(),
    )


def parse_rule(body: KubeObject) -> RuleRecord:
    """A RoutingRule."""
    spec, invalid = _validated(RoutingRuleSpec, body.get("spec") or {})
    status, _ = _validated(RoutingRuleStatus, body.get("status") or {})
    return RuleRecord(meta=parse_meta(body), spec=spec, invalid=invalid, status=status or RoutingRuleStatus())


def parse_table(body: KubeObject) -> TableRecord:
    """A RoutingTable."""
    spec, invalid = _validated(RoutingTableSpec, body.get("spec") or {})
    return TableRecord(meta=parse_meta(body), spec=spec, invalid=invalid)


def parse_service(body: KubeObject) -> ServiceRecord:
    """A Service."""
    spec = body.get("spec") or {}
    return ServiceRecord(
        meta=parse_meta(body),
        labels=dict(body["metadata"].get("labels") or {}),
        selector=dict(spec.get("selector") or {}),
        ports=tuple((str(port.get("name", "")), int(port["port"])) for port in spec.get("ports") or ()),
    )


def parse_pod(body: KubeObject) -> PodRecord:
    """An engine pod."""
    status = body.get("status") or {}
    conditions = {entry["type"]: _condition(entry) for entry in status.get("conditions") or ()}
    ready = conditions.get("Ready")
    slot, incarnation = _place(body["metadata"]["name"])
    phase = str(status.get("phase", ""))
    return PodRecord(
        meta=parse_meta(body),
        labels=dict(body["metadata"].get("labels") or {}),
        slot=slot,
        incarnation=incarnation,
        phase=PodPhase(phase) if phase in set(PodPhase) else PodPhase.UNKNOWN,
        reason=str(status.get("reason", "")),
        message=str(status.get("message", "")),
        ip=str(status.get("podIP", "")),
        node=str((body.get("spec") or {}).get("nodeName", "")),
        ready=ready is not None and ready.status == "True",
        ready_since=ready.since if ready is not None and ready.status == "True" else None,
        scheduled=conditions.get("PodScheduled"),
        gate=conditions.get(SERVING_GATE),
        engine=_engine(status),
    )


PARSERS: Mapping[Resource, Callable[[KubeObject], AnyRecord]] = {
    MODEL_VERSIONS: parse_version,
    ROUTING_RULES: parse_rule,
    ROUTING_TABLES: parse_table,
    PODS: parse_pod,
    SERVICES: parse_service,
}


def parse_meta(body: KubeObject) -> Meta:
    """The part of metadata that decisions need."""
    metadata = body["metadata"]
    return Meta(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        generation=int(metadata.get("generation") or 0),
        created=_moment(metadata.get("creationTimestamp")),
        deleting=_moment(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
    )


def _validated(model: type[_Model], raw: dict[str, Any]) -> tuple[_Model | None, str]:
    try:
        return model.model_validate(raw), ""
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return None, f"spec.{where}: {first['msg']}"


def _place(name: str) -> tuple[int, int]:
    """Slot and incarnation from ``<version>-<slot>-<incarnation>``; a foreign name has neither."""
    *_, slot, incarnation = ["", "", *name.split("-")]
    return (int(slot), int(incarnation)) if slot.isdecimal() and incarnation.isdecimal() else (-1, -1)


def _moment(text: str | None) -> datetime | None:
    return parse_moment(text) if text else None


def _condition(entry: Mapping[str, Any]) -> PodCondition:
    return PodCondition(
        status=str(entry.get("status", "")),
        reason=str(entry.get("reason", "")),
        message=str(entry.get("message", "")),
        since=_moment(entry.get("lastTransitionTime")),
    )


def _engine(status: Mapping[str, Any]) -> EngineContainer:
    for entry in status.get("containerStatuses") or ():
        if entry.get("name") == ENGINE_CONTAINER:
            state = entry.get("state") or {}
            waiting = state.get("waiting") or {}
            running = state.get("running") or {}
            return EngineContainer(
                running_since=_moment(running.get("startedAt")),
                started=bool(entry.get("started")),
                restarts=int(entry.get("restartCount") or 0),
                waiting_reason=str(waiting.get("reason", "")),
                waiting_message=str(waiting.get("message", "")),
                terminated=_termination(state.get("terminated")),
                last_terminated=_termination((entry.get("lastState") or {}).get("terminated")),
            )
    return EngineContainer()


def _termination(entry: Mapping[str, Any] | None) -> Termination | None:
    if not entry:
        return None
    return Termination(
        exit_code=int(entry.get("exitCode") or 0),
        reason=str(entry.get("reason", "")),
        message=str(entry.get("message", "")).strip(),
        finished=_moment(entry.get("finishedAt")),
    )

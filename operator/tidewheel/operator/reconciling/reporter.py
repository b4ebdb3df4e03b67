"""Events for people: what was done, and when a condition begins to say something else."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Literal

from tidewheel.clients.events import EventRecorder
from tidewheel.clients.resources import MODEL_VERSIONS, ROUTING_RULES, ROUTING_TABLES, KubeObject, Resource
from tidewheel.crds.conditions import Condition, ConditionStatus
from tidewheel.crds.names import MODEL_LABEL, UID_LABEL, VERSION_LABEL
from tidewheel.operator.planning.actions import (
    Action,
    AdoptPod,
    CreatePod,
    DeletePod,
    DeleteTable,
    SaveRollout,
    StartDrain,
    WriteTable,
)
from tidewheel.operator.planning.records import Meta, PodRecord

_LOG: Final = logging.getLogger(__name__)
_WAITING_LIMIT: Final = 200
_TROUBLE_WHEN: Final = {
    "Accepted": ConditionStatus.FALSE,
    "Degraded": ConditionStatus.TRUE,
    "Scheduled": ConditionStatus.FALSE,
    "WeightsLoaded": ConditionStatus.FALSE,
}
_ORDINARY: Final = frozenset({"Pending", "Loading"})

EventType = Literal["Normal", "Warning"]


class Reporter:
    """Posts Events beside the workers, best effort: when many wait, the next ones are dropped."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._tasks: set[asyncio.Task[bool]] = set()

    def action_done(self, action: Action) -> None:
        """Tell of what changed in the world, about the object that people look at."""
        match action:
            case CreatePod():
                self._post(_about_owner(action.manifest["metadata"]), "PodCreated", action.message)
            case AdoptPod():
                self._post(_about_pod(action.pod), "PodAdopted", action.message)
            case StartDrain():
                self._post(_about_pod(action.pod), "Draining", action.message)
            case DeletePod():
                self._post(_about_pod(action.pod), "PodDeleted", action.message)
            case WriteTable() if action.reason != "TableRefreshed" and not action.quiet:
                # `kubectl describe rr` is where people look, while there is a rule.
                rule_uid = action.spec.rule_uid if action.spec.orphaned_at is None else None
                resource = ROUTING_RULES if rule_uid else ROUTING_TABLES
                uid = rule_uid or (action.table.meta.uid if action.table else "")
                about = _about(resource, action.spec.model, action.namespace, uid)
                self._post(about, action.reason, action.message)
            case SaveRollout():
                meta = action.rule.meta
                about = _about(ROUTING_RULES, meta.name, meta.namespace, meta.uid)
                for event in action.events:
                    kind: EventType = "Warning" if event.is_trouble else "Normal"
                    self._post(about, event.reason, event.message, event_type=kind)
            case DeleteTable():
                meta = action.table.meta
                self._post(_about(ROUTING_TABLES, meta.name, meta.namespace, meta.uid), "TableDeleted", action.message)

    def status_changed(
        self, resource: Resource, meta: Meta, before: Iterable[Condition], after: Iterable[Condition]
    ) -> None:
        """A Warning when trouble begins or changes its reason; a Normal one when the object becomes Ready."""
        known = {condition.type: condition for condition in before}
        about = _about(resource, meta.name, meta.namespace, meta.uid)
        told: set[str] = set()
        for condition in after:
            old = known.get(condition.type)
            if old is not None and (old.status, old.reason) == (condition.status, condition.reason):
                continue
            trouble = _TROUBLE_WHEN.get(condition.type) is condition.status and condition.reason not in _ORDINARY
            if trouble and condition.reason not in told:
                told.add(condition.reason)
                self._post(about, condition.reason, condition.message, event_type="Warning")
            elif condition.type == "Ready" and condition.status is ConditionStatus.TRUE:
                self._post(about, "Ready", condition.message)

    def _post(self, about: KubeObject, reason: str, message: str, *, event_type: EventType = "Normal") -> None:
        if len(self._tasks) >= _WAITING_LIMIT:
            _LOG.warning("event %s about %s is dropped: too many wait", reason, about["metadata"]["name"])
            return
        task = asyncio.create_task(
            self._recorder.post(about, reason=reason, message=message, event_type=event_type),
            name=f"event {reason}",
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _about(resource: Resource, name: str, namespace: str, uid: str) -> KubeObject:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
    }


def _about_pod(pod: PodRecord) -> KubeObject:
    return _about_owner({"name": pod.meta.name, "namespace": pod.meta.namespace, "labels": pod.labels})


def _about_owner(pod_metadata: KubeObject) -> KubeObject:
    """The ModelVersion of a pod: `kubectl describe mv` is where people look."""
    labels = pod_metadata["labels"]
    name = f"{labels.get(MODEL_LABEL, '')}-{labels.get(VERSION_LABEL, '')}"
    return _about(MODEL_VERSIONS, name, pod_metadata["namespace"], labels.get(UID_LABEL, ""))

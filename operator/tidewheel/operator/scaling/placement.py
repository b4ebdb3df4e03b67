"""Which source a new pod comes from, and which pods leave because their node does."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from tidewheel.autoscaler.sources import Source, SourceKind, next_source
from tidewheel.crds.names import GROUP
from tidewheel.crds.scaling import ScalingSource
from tidewheel.operator.planning.actions import Action, CreatePod, StartDrain
from tidewheel.operator.planning.records import PodRecord, VersionRecord

SOURCE_LABEL: Final = f"{GROUP}/source"


def placed(actions: Iterable[Action], version: VersionRecord, pods: Sequence[PodRecord]) -> tuple[Action, ...]:
    """The actions, each new pod with the selector, tolerations and priority of its source."""
    scaling = version.spec.scaling if version.spec is not None else None
    if scaling is None or not scaling.sources:
        return tuple(actions)
    present = Counter(pod.labels.get(SOURCE_LABEL, "") for pod in pods if pod.is_live)
    sources = [_source(entry) for entry in scaling.sources]
    by_name = {entry.name: entry for entry in scaling.sources}
    done: list[Action] = []
    wanted = present.total() + sum(isinstance(action, CreatePod) for action in actions)
    for action in actions:
        name = next_source(present, wanted, sources) if isinstance(action, CreatePod) else None
        if isinstance(action, CreatePod) and name is not None:
            present[name] += 1
            done.append(replace(action, manifest=_with_source(action.manifest, by_name[name])))
        else:
            done.append(action)
    return tuple(done)


def departures(pods: Iterable[PodRecord], leaving_nodes: frozenset[str]) -> tuple[StartDrain, ...]:
    """Drains of replicas whose node has given notice: their streams move while there is time."""
    return tuple(
        StartDrain(pod=pod, message=f"drain pod {pod.meta.name}: node {pod.node} has said that it will go")
        for pod in pods
        if pod.is_live and pod.node in leaving_nodes
    )


def _source(entry: ScalingSource) -> Source:
    kind = SourceKind(entry.kind.value)
    return Source(name=entry.name, kind=kind, max_replicas=entry.max_replicas, price=entry.price)


def _with_source(manifest: dict[str, Any], source: ScalingSource) -> dict[str, Any]:
    spec = dict(manifest["spec"])
    if source.node_selector:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **source.node_selector}
    if source.toleration_keys:
        more = [{"key": key, "operator": "Exists"} for key in source.toleration_keys]
        spec["tolerations"] = [*spec.get("tolerations", []), *more]
    if source.priority_class_name:
        spec["priorityClassName"] = source.priority_class_name
    metadata = dict(manifest["metadata"])
    metadata["labels"] = {**metadata["labels"], SOURCE_LABEL: source.name}
    return {**manifest, "metadata": metadata, "spec": spec}

"""Status of a ModelVersion."""

from dataclasses import dataclass
from datetime import datetime

from tidewheel.crds.conditions import Condition, ConditionStatus, roll_up
from tidewheel.crds.modelversion import ModelVersionStatus, Phase
from tidewheel.crds.names import UID_LABEL
from tidewheel.operator.planning.conditions import ConditionList
from tidewheel.operator.planning.failures import Problem, worst_problem
from tidewheel.operator.planning.labels import digest_label
from tidewheel.operator.planning.records import LoadReading, Picture, PodRecord, VersionRecord
from tidewheel.operator.planning.verdicts import Finding
from tidewheel.operator.scaling.status import with_scaling

PARTS = ("Accepted", "Scheduled", "WeightsLoaded", "Available")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOutlook:
    """What the planner decided about a version: its size and why, whether it serves, what failed."""

    desired: int
    reason: str
    weight: int
    leading: bool
    """No version of the model has more weight."""
    in_service: bool
    failure: Finding | None = None
    """What the API server refused us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    live: tuple[PodRecord, ...]
    ready: int
    draining: tuple[PodRecord, ...]
    streams: int | None


def version_status(version: VersionRecord, outlook: VersionOutlook, picture: Picture) -> ModelVersionStatus:
    """The status as it should be now."""
    pods = picture.pods_of(version.version)
    count = _count(version, pods, picture)
    problem = worst_problem(tuple(pod for pod in pods if _runs(pod, version)), version.spec) if version.spec else None
    found = ModelVersionStatus(
        phase=_phase(version, outlook, count),
        digest=version.digest or None,
        replicas=len(count.live),
        ready_replicas=count.ready,
        draining_replicas=len(count.draining),
        desired_replicas=outlook.desired,
        ready=f"{count.ready}/{outlook.desired}",
        selector=f"{UID_LABEL}={version.meta.uid}",
        active_streams=count.streams,
        conditions=_conditions(version, outlook, count, problem, picture.now),
        observed_generation=version.meta.generation,
    )
    return with_scaling(found, version, picture)


def _runs(pod: PodRecord, version: VersionRecord) -> bool:
    return pod.digest_label == digest_label(version.digest)


def _count(version: VersionRecord, pods: tuple[PodRecord, ...], picture: Picture) -> _Count:
    live = tuple(pod for pod in pods if pod.is_live and _runs(pod, version))
    draining = tuple(pod for pod in pods if pod.is_draining and not pod.is_finished)
    readings: list[LoadReading] = [
        picture.loads[pod.meta.uid] for pod in draining if pod.meta.uid in picture.loads and not pod.is_terminating
    ]
    known = [reading.streams for reading in readings if reading.streams is not None]
    return _Count(
        live=live,
        ready=sum(pod.ready for pod in live),
        draining=draining,
        streams=sum(known) if known else None,
    )


def _phase(version: VersionRecord, outlook: VersionOutlook, count: _Count) -> Phase:
    if version.meta.deleting and not outlook.in_service:
        return Phase.RETIRED
    if outlook.weight and count.ready:
        return Phase.STABLE if outlook.leading else Phase.CANARY
    if outlook.desired == 0:
        return Phase.RETIRED if count.draining else Phase.IDLE
    return Phase.READY if count.ready >= outlook.desired else Phase.LOADING


def _conditions(
    version: VersionRecord, outlook: VersionOutlook, count: _Count, problem: Problem | None, now: datetime
) -> list[Condition]:
    generation = version.meta.generation
    conditions = ConditionList(version.status.conditions, generation=generation, now=now)
    conditions.add("Accepted", version.spec is not None, _accepted(version))
    conditions.add("Scheduled", *_scheduled(outlook, count, problem))
    conditions.add("WeightsLoaded", *_weights_loaded(outlook, count, problem))
    served = count.ready >= outlook.desired
    ready_words = f"{count.ready} of {outlook.desired} replicas serve ({outlook.reason})"
    conditions.add("Available", served, Finding("ReplicasReady" if served else "ReplicasMissing", ready_words))
    trouble = outlook.failure or (problem.finding if problem else None)
    conditions.add("Degraded", trouble is not None, trouble or Finding("AsExpected", "no replica is in trouble"))
    stalled = version.spec is None or (problem is not None and problem.stalled)
    if stalled:
        finding = problem.finding if problem else _accepted(version)
        conditions.add("Stalled", True, finding)
    else:
        conditions.add("Stalled", False, Finding("Progressing", "nothing waits for a person"))
    conditions.add("Reconciling", *_reconciling(version, outlook, count, stalled=stalled))
    parts = conditions.as_list()
    whole = roll_up(parts, PARTS, generation=generation)
    conditions.add("Ready", whole, _ready(parts, trouble, ready_words))
    return conditions.as_list()


def _accepted(version: VersionRecord) -> Finding:
    if version.spec is None:
        return Finding("InvalidSpec", f"{version.invalid}; the replicas stay as they are")
    return Finding("Valid", "the spec can be run")


def _scheduled(
    outlook: VersionOutlook, count: _Count, problem: Problem | None
) -> tuple[ConditionStatus | bool, Finding]:
    if problem is not None and problem.part == "Scheduled":
        return False, problem.finding
    if outlook.desired == 0:
        return True, Finding("NoneWanted", "no replica is wanted")
    placed = sum(bool(pod.node) for pod in count.live)
    words = f"{placed} of {outlook.desired} replicas have a node"
    return (True, Finding("Placed", words)) if placed >= outlook.desired else (False, Finding("Pending", words))


def _weights_loaded(
    outlook: VersionOutlook, count: _Count, problem: Problem | None
) -> tuple[ConditionStatus | bool, Finding]:
    if problem is not None and problem.part == "WeightsLoaded":
        return False, problem.finding
    if outlook.desired == 0:
        return True, Finding("NoneWanted", "no replica is wanted")
    loaded = sum(pod.engine.started for pod in count.live)
    words = f"{loaded} of {outlook.desired} engines have generated a token"
    return (True, Finding("Loaded", words)) if loaded >= outlook.desired else (False, Finding("Loading", words))


def _reconciling(
    version: VersionRecord, outlook: VersionOutlook, count: _Count, *, stalled: bool
) -> tuple[bool, Finding]:
    if stalled:
        return False, Finding("Stalled", "see condition Stalled")
    if version.meta.deleting and outlook.in_service:
        message = f"deleted, but still in service: {outlook.reason}; it goes when that ends"
        return True, Finding("InService", message)
    if count.draining:
        return True, Finding("Draining", f"{len(count.draining)} replica(s) end their streams before they go")
    if count.ready != outlook.desired or len(count.live) != outlook.desired:
        words = f"{len(count.live)} of {outlook.desired} replicas exist, {count.ready} are ready"
        return True, Finding("Scaling", words)
    return False, Finding("UpToDate", "replicas are as wanted")


def _ready(parts: list[Condition], trouble: Finding | None, words: str) -> Finding:
    """The first part that is not True speaks for the whole."""
    for part in parts:
        if part.type in PARTS and part.status is not ConditionStatus.TRUE:
            return trouble or Finding(part.reason, part.message)
    return Finding("AllReplicasReady", words)

"""Slim frozen records of the API server's objects; raw ones are dropped, for managedFields dominate their memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from tidewheel.crds.modelversion import ModelVersionSpec, ModelVersionStatus
from tidewheel.crds.names import DIGEST_LABEL, MODEL_LABEL, UID_LABEL, VERSION_LABEL
from tidewheel.crds.routingrule import RoutingRuleSpec, RoutingRuleStatus
from tidewheel.crds.routingtable import RoutingTableSpec
from tidewheel.operator.planning.rollouts.evidence import NOTHING_KNOWN, RolloutEvidence
from tidewheel.operator.scaling.advice import ModelAdvice


class ModelKey(NamedTuple):
    """One model in one namespace: the unit of reconciliation."""

    namespace: str
    model: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The parts of metadata that decisions need. ``deleting`` is the deletionTimestamp."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int = 0
    created: datetime | None = None
    deleting: datetime | None = None
    finalizers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """A ModelVersion. ``spec`` is None where it cannot be read; ``invalid`` then says why."""

    meta: Meta
    model: str
    version: str
    spec: ModelVersionSpec | None
    digest: str = ""
    invalid: str = ""
    status: ModelVersionStatus = field(default_factory=ModelVersionStatus)

    @property
    def key(self) -> ModelKey:
        return ModelKey(self.meta.namespace, self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRecord:
    """A RoutingRule."""

    meta: Meta
    spec: RoutingRuleSpec | None
    invalid: str = ""
    status: RoutingRuleStatus = field(default_factory=RoutingRuleStatus)

    @property
    def key(self) -> ModelKey:
        return ModelKey(self.meta.namespace, self.meta.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """A RoutingTable. An unreadable one is left alone: a newer operator, or a person, wrote it."""

    meta: Meta
    spec: RoutingTableSpec | None
    invalid: str = ""

    @property
    def key(self) -> ModelKey:
        return ModelKey(self.meta.namespace, self.meta.name)


@dataclass(frozen=True, slots=True)
class PodCondition:
    """One condition of a pod."""

    status: str
    reason: str = ""
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Termination:
    """How a container ended."""

    exit_code: int
    reason: str = ""
    message: str = ""
    finished: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContainer:
    """State of the engine container. ``started`` means that its start-up probe has passed: a token was generated."""

    running_since: datetime | None = None
    started: bool = False
    restarts: int = 0
    waiting_reason: str = ""
    waiting_message: str = ""
    terminated: Termination | None = None
    last_terminated: Termination | None = None


class PodPhase(StrEnum):
    """Phase of a pod as the kubelet reports it."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """An engine pod. ``slot`` and ``incarnation`` come from its name."""

    meta: Meta
    labels: Mapping[str, str]
    slot: int
    incarnation: int
    phase: PodPhase = PodPhase.PENDING
    reason: str = ""
    message: str = ""
    ip: str = ""
    node: str = ""
    ready: bool = False
    ready_since: datetime | None = None
    scheduled: PodCondition | None = None
    gate: PodCondition | None = None
    engine: EngineContainer = EngineContainer()

    @property
    def key(self) -> ModelKey:
        return ModelKey(self.meta.namespace, self.labels.get(MODEL_LABEL, ""))

    @property
    def version(self) -> str:
        return self.labels.get(VERSION_LABEL, "")

    @property
    def owner_uid(self) -> str:
        return self.labels.get(UID_LABEL, "")

    @property
    def digest_label(self) -> str:
        return self.labels.get(DIGEST_LABEL, "")

    @property
    def is_terminating(self) -> bool:
        return self.meta.deleting is not None

    @property
    def is_finished(self) -> bool:
        """Evicted, or ended by its node: it will never serve again (engine containers restart for ever)."""
        return self.phase in {PodPhase.FAILED, PodPhase.SUCCEEDED}

    @property
    def is_draining(self) -> bool:
        return self.gate is not None and self.gate.status == "False"

    @property
    def is_live(self) -> bool:
        """A replica that is here to stay: counted against the wanted number."""
        return not (self.is_terminating or self.is_finished or self.is_draining)

    @property
    def is_serving(self) -> bool:
        """Takes traffic: live, and a real token was generated."""
        return self.is_live and self.ready

    @property
    def may_hold_streams(self) -> bool:
        """Whether a client could be connected: not before the first token of the container that runs now."""
        return self.engine.running_since is not None and self.engine.started


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """A Service; ``ports`` as (name, port)."""

    meta: Meta
    labels: Mapping[str, str]
    selector: Mapping[str, str]
    ports: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> ModelKey:
        return ModelKey(self.meta.namespace, self.labels.get(MODEL_LABEL, ""))

    @property
    def version(self) -> str:
        return self.labels.get(VERSION_LABEL, "")


AnyRecord = VersionRecord | RuleRecord | TableRecord | PodRecord | ServiceRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReading:
    """What an engine's ``/load`` said, or that it said nothing (``streams`` None: unknown is not idle)."""

    at: datetime
    streams: int | None
    draining: bool = False
    oldest_stream_seconds: float | None = None


def gpus_of(version: VersionRecord) -> int:
    """GPUs of one replica; a CPU replica counts as one."""
    return max(version.spec.replica.gpus, 1) if version.spec is not None else 1


def unknown() -> None:
    """The size of the pool is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything about one model at one moment."""

    key: ModelKey
    now: datetime
    versions: Mapping[str, VersionRecord]
    rule: RuleRecord | None = None
    table: TableRecord | None = None
    pods: tuple[PodRecord, ...] = ()
    services: Mapping[str, ServiceRecord]
    loads: Mapping[str, LoadReading]
    namespace_terminating: bool = False
    evidence: RolloutEvidence = NOTHING_KNOWN
    advice: ModelAdvice | None = None
    """What the scaling loop worked out last."""
    gpus_free: Callable[[], int | None] = unknown
    """Of the operator's GPU budget, over all models; None: there is no budget."""

    def pods_of(self, version: str) -> tuple[PodRecord, ...]:
        """The pods of a version, by slot and incarnation."""
        mine = [pod for pod in self.pods if pod.version == version]
        return tuple(sorted(mine, key=lambda pod: (pod.slot, pod.incarnation)))

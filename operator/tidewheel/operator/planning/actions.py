"""What the executor can do. Every action carries its reason, in words that serve the log and the Event alike."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tidewheel.crds.rolloutstatus import RolloutStatus
from tidewheel.crds.routingtable import RoutingTableSpec
from tidewheel.operator.planning.records import PodRecord, RuleRecord, ServiceRecord, TableRecord, VersionRecord


class RolloutEvent(NamedTuple):
    """One transition of a rollout, in words. ``is_trouble``: somebody should look."""

    reason: str
    message: str
    is_trouble: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One write to the API server. ``disruptive`` ones are planned again from live reads before they happen."""

    disruptive: ClassVar[bool] = False
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFinalizer(Action):
    """Hold the version until it is out of service."""

    version: VersionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFinalizer(Action):
    """Let a deleted version go."""

    disruptive: ClassVar[bool] = True
    version: VersionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyService(Action):
    """Create or correct the headless Service."""

    disruptive: ClassVar[bool] = True
    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteService(Action):
    """Remove a Service whose version is gone."""

    disruptive: ClassVar[bool] = True
    service: ServiceRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod(Action):
    """Start a replica."""

    disruptive: ClassVar[bool] = True
    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptPod(Action):
    """Give a running pod to the version that was re-created with the same digest."""

    pod: PodRecord
    labels: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGate(Action):
    """Let a new pod become Ready once its engine is."""

    pod: PodRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDrain(Action):
    """Close the pod's gate: no new streams; the moment is kept in the condition."""

    disruptive: ClassVar[bool] = True
    pod: PodRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod(Action):
    """Remove a pod; ``grace_seconds`` None leaves the pod's own."""

    disruptive: ClassVar[bool] = True
    pod: PodRecord
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTable(Action):
    """Write the split in force. ``table`` is the one it replaces, None to create."""

    disruptive: ClassVar[bool] = True
    namespace: str
    spec: RoutingTableSpec
    table: TableRecord | None
    reason: str
    quiet: bool = False
    """Somebody else tells of it: a rollout has one Event per transition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRollout(Action):
    """Store how far a rollout is, after the table says so; ``events`` are what happened on the way."""

    rule: RuleRecord
    rollout: RolloutStatus
    events: tuple[RolloutEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTable(Action):
    """Remove a table whose rule is long gone."""

    disruptive: ClassVar[bool] = True
    table: TableRecord


@dataclass(frozen=True, slots=True)
class Chain:
    """Actions in order, about one version or about the table; a failure stops its own chain only."""

    subject: str
    actions: tuple[Action, ...]

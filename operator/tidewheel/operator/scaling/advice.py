"""What the scaling loop has worked out for a model; planners read it as a part of the picture."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidewheel.autoscaler.capacity import ReplicaCapacity
from tidewheel.autoscaler.eta import UNKNOWN, Eta
from tidewheel.autoscaler.outlook import Outlook
from tidewheel.autoscaler.version_plan import LoadPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAdvice:
    """One version: the plan for any share of traffic, and what it rests on."""

    load: LoadPlan
    capacity: ReplicaCapacity
    lead_seconds: float
    other_writer: str = ""
    """Somebody else who sizes this version; then we only advise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAdvice:
    """One model at one moment."""

    outlook: Outlook
    forecast_by: str = ""
    blind_reason: str = ""
    versions: Mapping[str, VersionAdvice] = field(default_factory=dict)
    rung: int = 0
    rung_message: str = ""
    relief: Eta = UNKNOWN
    """Seconds until ready replicas and those on their way carry present demand."""
    leaving_nodes: frozenset[str] = frozenset()
    """Nodes that have said they will go: their replicas drain now."""

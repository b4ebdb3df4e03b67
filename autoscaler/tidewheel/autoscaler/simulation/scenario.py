"""A day to play: demand, how replicas start, what goes wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tidewheel.autoscaler.capacity import CapacitySource, ReplicaCapacity
from tidewheel.autoscaler.ladder import LadderSettings
from tidewheel.autoscaler.outlook import OutlookSettings
from tidewheel.autoscaler.version_plan import Bounds

HOUR = 3600.0


class FaultKind(StrEnum):
    """What goes wrong, for a while."""

    METRICS_GONE = "metrics gone"
    GATEWAYS_UNSCRAPED = "gateways unscraped"
    """``size`` of them, as a share."""
    COUNTER_RESET = "counter reset"
    """Readings are zero although demand is not."""
    RETRIES = "retries"
    """Readings are ``size`` times the demand."""
    LOAD_TEST = "load test"
    """Demand is ``size`` times itself."""
    MARKED_LOAD_TEST = "marked load test"
    """The same, and its buckets are flagged."""
    SLOW_STORE = "slow store"
    """Starts take ``size`` times as long."""
    STUCK_PENDING = "stuck pending"
    """New replicas do not start before the end."""
    QUOTA = "quota"
    """At most ``size`` replicas may exist; the others wait at the gate."""
    POOL_GONE = "pool gone"
    """At the start, a share ``size`` of the replicas vanishes."""
    SPOT_RECLAIMED = "spot reclaimed"
    """The same with two minutes' notice, in which streams move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """From ``start`` to ``end``, in seconds of the day."""

    kind: FaultKind
    start: float
    end: float
    size: float = 0.0

    def active(self, at: float) -> bool:
        """Whether it is on."""
        return self.start <= at < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One day. ``demand`` is decode tok/s at a second (negative ones are the days before)."""

    demand: Callable[[float], float]
    bounds: Bounds
    history_days: int = 8
    seconds: float = 24 * HOUR
    tick_seconds: float = 30.0
    prompt_per_output: float = 2.0
    capacity: ReplicaCapacity = field(
        default_factory=lambda: ReplicaCapacity(
            prefill=4_000, decode=1_000, kv_tokens=400_000, max_streams=100, source=CapacitySource.MEASURED
        )
    )
    start_seconds: float = 300.0
    """Median of a start; the spread is that of measured ones, p99 2.3 times the median."""
    node_wait_seconds: float = 60.0
    """Added where the fleet grows beyond what it has been."""
    stream_seconds: float = 30.0
    gateways: int = 4
    outlook: OutlookSettings = field(default_factory=lambda: OutlookSettings(step_seconds=600))
    ladder: LadderSettings = field(default_factory=LadderSettings)
    faults: Sequence[Fault] = ()
    seed: int = 1

    def active(self, at: float, kind: FaultKind) -> Fault | None:
        """The fault of this kind that is on."""
        return next((fault for fault in self.faults if fault.kind is kind and fault.active(at)), None)

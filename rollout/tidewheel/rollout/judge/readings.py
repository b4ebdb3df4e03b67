"""What a metrics reader fills in: the counters of both arms at one instant, as the gateways count them.

Counters are cumulative since each gateway started, kept apart per gateway, because only so can the restart of one be
told from silence. Requests with a version pin are left out by the reader. Floats, for a reader may interpolate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

from tidewheel.rollout.judge.metrics import Latency

Seconds = float
GatewayName = NewType("GatewayName", str)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Classic cumulative buckets: one count per upper edge in ``edges``, and a last one for +Inf."""

    edges: tuple[float, ...]
    cumulative: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """One arm as one gateway has counted it. None: the series is absent.

    An absent ``errors`` series beside a ``requests`` series that is there means no errors; an absent histogram or
    ``over_slo`` makes its metric unusable.
    """

    requests: float | None
    errors: float | None = None
    stalls: float | None = None
    over_slo: Mapping[Latency, float] = field(default_factory=dict)
    latency: Mapping[Latency, Histogram] = field(default_factory=dict)
    prompt_tokens: Histogram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReading:
    """One arm. ``in_flight`` per ready replica is how loads are compared; None: not known."""

    gateways: Mapping[GatewayName, Counters]
    in_flight: float | None = None
    ready_replicas: int | None = None

    @property
    def load_per_replica(self) -> float | None:
        """Requests in flight per replica that serves."""
        if self.in_flight is None or not self.ready_replicas:
            return None
        return self.in_flight / self.ready_replicas


@dataclass(frozen=True, slots=True)
class CustomReading:
    """A user's metric: one number per arm; None: its query gave none."""

    base: float | None
    canary: float | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a metric cannot be used; ``metric`` None means all of them. ``reason`` is one CamelCase word."""

    reason: str
    message: str
    metric: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Both arms at one explicit instant ``at`` (seconds since the epoch), on which every query was evaluated.

    ``sample_age`` is the age of the oldest request series at that instant; ``clock_skew`` is this host's clock minus
    the provider's. ``troubles`` are what the reader met: errors, warnings, several series where one was due.
    """

    at: Seconds
    base: ArmReading
    canary: ArmReading
    expected_gateways: frozenset[GatewayName]
    sample_age: Seconds = 0.0
    clock_skew: Seconds = 0.0
    custom: Mapping[str, CustomReading] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()

"""The Lease as a state machine without I/O.

Expiry is when *we* last saw the record change, on our monotonic clock: comparing wall clocks of two machines lets two
leaders act. Our own leadership counts from before the request that renewed it, and ends earlier than others may take
over.
"""

from dataclasses import dataclass
from enum import Enum, auto

from tidewheel.clients.resources import KubeObject


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Seconds: how long a Lease holds, how long we trust our own, and how often we renew."""

    identity: str
    lease_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


class Step(Enum):
    """What to do next."""

    CREATE = auto()
    WRITE = auto()
    WAIT = auto()


@dataclass(frozen=True, slots=True)
class LeaseView:
    """What a Lease says."""

    holder: str
    renewed: str
    transitions: int
    resource_version: str
    lease_seconds: float

    @classmethod
    def of(cls, body: KubeObject) -> "LeaseView":
        """From the API server's object."""
        spec = body.get("spec") or {}
        return cls(
            holder=str(spec.get("holderIdentity") or ""),
            renewed=str(spec.get("renewTime") or ""),
            transitions=int(spec.get("leaseTransitions") or 0),
            resource_version=str(body["metadata"]["resourceVersion"]),
            lease_seconds=float(spec.get("leaseDurationSeconds") or 0),
        )


class LeaseState:
    """What we know of the Lease, and whether it is ours. ``now`` is monotonic everywhere."""

    def __init__(self, settings: LeaseSettings) -> None:
        self._settings = settings
        self._seen: LeaseView | None = None
        self._changed_at = 0.0
        self._absent = False
        self._renewed_at: float | None = None

    @property
    def seen(self) -> LeaseView | None:
        """The Lease as it was seen last."""
        return self._seen

    def observe(self, view: LeaseView | None, now: float) -> None:
        """The Lease was read, or written by somebody else; None: there is none."""
        self._absent = view is None
        if view is None:
            self._seen, self._renewed_at = None, None
            return
        if self._seen is None or view != self._seen:
            self._seen, self._changed_at = view, now
        if view.holder != self._settings.identity:
            self._renewed_at = None

    def written(self, view: LeaseView, *, sent_at: float) -> None:
        """Our write succeeded; ``sent_at`` is from before it was sent."""
        self._absent = False
        self._seen, self._changed_at = view, sent_at
        self._renewed_at = sent_at

    def holds(self, now: float) -> bool:
        """Whether the Lease is surely ours."""
        return self._renewed_at is not None and now < self._renewed_at + self._settings.renew_deadline_seconds

    def next_step(self, now: float) -> Step:
        """Create, write (renew or take) or wait."""
        if self._absent:
            return Step.CREATE
        if self._seen is None:
            return Step.WAIT
        mine = self._seen.holder == self._settings.identity
        expired = now >= self._changed_at + max(self._seen.lease_seconds, self._settings.lease_seconds)
        return Step.WRITE if mine or not self._seen.holder or expired else Step.WAIT

    def next_transitions(self) -> int:
        """``leaseTransitions`` of our next write: it counts changes of the holder."""
        if self._seen is None:
            return 0
        return self._seen.transitions + (self._seen.holder != self._settings.identity)

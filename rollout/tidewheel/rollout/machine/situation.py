"""Everything the step machine looks at, at one moment, and everything it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from tidewheel.crds.rolloutchoices import OnCapacity
from tidewheel.rollout.judge.findings import Verdict
from tidewheel.rollout.judge.steps import StepContext
from tidewheel.rollout.machine.policy import RolloutPolicy
from tidewheel.rollout.machine.splits import Split
from tidewheel.rollout.machine.state import RolloutState
from tidewheel.rollout.quality.scoring import QualityVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """A version as it is now. ``ready``: replicas that have generated a real token; ``present``: all that are here to
    stay; ``gpus`` of one (1 for a CPU replica)."""

    digest: str
    ready: int = 0
    present: int = 0
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class RejectedDigest:
    """A digest that is not tried again."""

    digest: str
    version: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a person asked for; it names the rollout it was typed for, and is ignored by any other."""

    rollout_id: str
    actor: str = ""
    paused: bool = False
    no_rollback: bool = False
    """With ``paused``: a breach does not roll back either. A separate, loud choice."""
    promote_step: int | None = None
    """Number of the step, from 1, to go to now, without waiting for the judge."""
    retry_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """The RoutingTable. ``by_person``: its last cause is not the operator; ``rollout_id`` is that cause's."""

    split: Split
    generation: int
    previous: Split = field(default_factory=dict)
    rollout_id: str = ""
    by_person: bool = False
    actor: str = ""
    rejected: tuple[RejectedDigest, ...] = ()
    control: Control | None = None

    def rejection_of(self, digest: str) -> RejectedDigest | None:
        """The entry that forbids this digest."""
        return next((entry for entry in self.rejected if entry.digest == digest), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """``answered``: the table has already answered this generation of the rule. ``confirmed``: every live gateway and
    the generation of the table it obeys, None where it did not say."""

    now: datetime
    goal: Split
    policy: RolloutPolicy
    versions: Mapping[str, VersionFacts]
    need: Callable[[str, int], int]
    """Replicas that a version needs for a share in basis points."""
    table: TableFacts | None
    answered: bool = False
    paused: bool = False
    confirmed: Mapping[str, int | None] = field(default_factory=dict)
    verdict: Verdict | None = None
    quality: QualityVerdict | None = None
    """What the shadow prompts said last."""
    on_capacity: OnCapacity = OnCapacity.SURGE
    gpus_free: int | None = None
    """Of the pool; None: nobody knows, so whether both versions fit shows by waiting."""
    slo_seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Per version and latency metric."""
    new_rollout_id: str = ""

    @property
    def split(self) -> Split:
        """In force now."""
        return self.table.split if self.table is not None else {}

    def ready(self, version: str | None) -> int:
        """Replicas of a version that serve."""
        facts = self.versions.get(version or "")
        return facts.ready if facts is not None else 0

    def digest(self, version: str | None) -> str:
        """Of a version; empty where it does not exist."""
        facts = self.versions.get(version or "")
        return facts.digest if facts is not None else ""


class Transition(NamedTuple):
    """Something that happened, for an Event."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now. One write of the table at most, and bookkeeping that may be lost without harm."""

    state: RolloutState | None
    reason: str
    message: str
    split: Split | None = None
    """Write this split, with ``state.start`` as the table's ``previous``. None: leave the table as it is."""
    reject: RejectedDigest | None = None
    """Goes into the same write."""
    unreject: str | None = None
    """A digest to remove from ``rejected`` in the same write."""
    answered: bool = False
    """Record the rule's generation as answered."""
    grow: Mapping[str, int] = field(default_factory=dict)
    """Shares that versions are about to get: their replicas must be there first."""
    judge: StepContext | None = None
    """What is to be judged from now on; None: nothing."""
    ask_quality: bool = False
    """Both versions are to be asked the shadow prompts; the verdict comes with a later look."""
    events: tuple[Transition, ...] = ()
    degraded: Transition | None = None
    stalled: Transition | None = None
    suspended: bool = False
    """Waits for a person (Argo CD: Suspended)."""
    wake_at: datetime | None = None

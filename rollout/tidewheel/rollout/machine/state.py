"""Progress of a rollout as it is kept in ``RoutingRule.status.rollout``; it survives the operator.

Moments are UTC in RFC 3339 with milliseconds. What cannot be read back raises StateError, and the step starts again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from tidewheel.rollout.errors import StateError


class Phase(StrEnum):
    """What the rollout is doing."""

    WAITING_FOR_WINDOW = "WaitingForWindow"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    CONFIRMING = "Confirming"
    BAKING = "Baking"
    FINISHED = "Finished"


class Outcome(StrEnum):
    """How a rollout ended."""

    PROMOTED = "Promoted"
    FAST_PROMOTED = "FastPromoted"
    REJECTED = "Rejected"
    """The judge found it worse than allowed."""
    ROLLED_BACK = "RolledBack"
    """By hand, or because the rule went back to where it came from; nothing is rejected by that alone."""
    SUPERSEDED = "Superseded"
    ABORTED = "Aborted"
    """A person set another split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastGood:
    """The version that last completed a rollout."""

    version: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRollout:
    """One line of history."""

    id: str
    outcome: Outcome
    message: str
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """One rollout. ``step`` counts from 0. Clocks are accumulated seconds, so that a restart changes nothing."""

    id: str
    start: dict[str, int]
    goal: dict[str, int]
    base: str | None
    canary: str | None
    canary_digest: str
    steps: int
    started_at: datetime
    table_generation: int
    """Of the RoutingTable when the rollout started: what a person wrote before that is no answer to it."""
    phase: Phase = Phase.WAITING_FOR_CAPACITY
    phase_since: datetime
    step: int = 0
    split: dict[str, int]
    """Of the present step; what the table has once the weight is in force."""
    weight_generation: int = 0
    """Of the table when the step's weight was first seen in it: what gateways must confirm."""
    bake_seconds: float = 0.0
    judged: bool = False
    canary_share: float = 0.0
    canary_replicas: int = 1
    """That served when the weight was confirmed; kept, for another number would be another judgement."""
    step_started_at: datetime | None = None
    first_weight_at: datetime | None = None
    confirmed_at: datetime | None = None
    baked_seconds: float = 0.0
    credited_until: datetime | None = None
    """End of the last stretch that the bake clock has counted; nothing before it is counted again."""
    held_since: datetime | None = None
    """Since when the verdict has been THIN or SKEWED beyond the bake, or BLIND."""
    base_down_since: datetime | None = None
    verdict: str = ""
    reason: str = ""
    message: str = ""
    promoted_by: str = ""
    """Who skipped the judge; empty: nobody."""
    dropped_verdicts: int = 0
    quality: str = ""
    """What the shadow prompts said: CLEAR, SUSPECT, BREACH or BLIND; empty: not asked."""
    quality_message: str = ""
    outcome: Outcome | None = None
    finished_at: datetime | None = None
    last_good: LastGood | None = None
    history: tuple[PastRollout, ...] = field(default_factory=tuple)

    @property
    def is_finished(self) -> bool:
        """Nothing more happens for this rollout."""
        return self.phase is Phase.FINISHED


_MOMENTS: Final = frozenset(
    {
        "started_at",
        "phase_since",
        "step_started_at",
        "first_weight_at",
        "confirmed_at",
        "credited_until",
        "held_since",
        "base_down_since",
        "finished_at",
    }
)

_WRITTEN_AS: Final = {"start": "from", "goal": "to"}
"""As people read them in the status; ``from`` is no name in Python."""


def to_json(state: RolloutState) -> dict[str, Any]:
    """camelCase, absent instead of null."""
    written = {_camel(item.name): _plain(getattr(state, item.name)) for item in fields(state)}
    return {name: value for name, value in written.items() if value not in (None, "", [])}


def from_json(stored: Mapping[str, Any]) -> RolloutState:
    """The state as it was written. Raises StateError."""
    try:
        values = {item.name: stored[_camel(item.name)] for item in fields(RolloutState) if _camel(item.name) in stored}
        for name in _MOMENTS & values.keys():
            values[name] = _moment(values[name])
        values["phase"] = Phase(values["phase"])
        for name in ("start", "goal", "split"):
            values[name] = {str(version): int(share) for version, share in values[name].items()}
        for name in ("base", "canary"):
            values.setdefault(name, None)
        values.setdefault("canary_digest", "")
        if "outcome" in values:
            values["outcome"] = Outcome(values["outcome"])
        if "last_good" in values:
            values["last_good"] = LastGood(**values["last_good"])
        values["history"] = tuple(_past(entry) for entry in values.get("history", ()))
        return RolloutState(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"status.rollout cannot be read back ({error!r}); the step starts again") from error


def _past(entry: Mapping[str, Any]) -> PastRollout:
    return PastRollout(
        id=entry["id"],
        outcome=Outcome(entry["outcome"]),
        message=entry["message"],
        finished_at=_moment(entry["finishedAt"]),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, (LastGood, PastRollout)):
        return {_camel(item.name): _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    return round(value, 3) if isinstance(value, float) else value


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _camel(name: str) -> str:
    if name in _WRITTEN_AS:
        return _WRITTEN_AS[name]
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)

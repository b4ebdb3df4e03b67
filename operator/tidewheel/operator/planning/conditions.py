"""Conditions of a status, built on those that are there: the transition time moves only when the status flips."""

from collections.abc import Iterable
from datetime import datetime

from tidewheel.crds.conditions import Condition, ConditionStatus
from tidewheel.operator.moments import format_moment
from tidewheel.operator.planning.verdicts import Finding

MESSAGE_LIMIT = 2048


class ConditionList:
    """Collects the conditions of one status."""

    def __init__(self, previous: Iterable[Condition], *, generation: int, now: datetime) -> None:
        self._previous = {condition.type: condition for condition in previous}
        self._generation = generation
        self._now = format_moment(now)
        self._conditions: list[Condition] = []

    def add(self, kind: str, status: ConditionStatus | bool, finding: Finding) -> None:
        """Append one condition."""
        if isinstance(status, bool):
            status = ConditionStatus.TRUE if status else ConditionStatus.FALSE
        before = self._previous.get(kind)
        unchanged = before is not None and before.status is status
        self._conditions.append(
            Condition(
                type=kind,
                status=status,
                reason=finding.reason,
                message=finding.message[:MESSAGE_LIMIT],
                last_transition_time=before.last_transition_time if before and unchanged else self._now,
                observed_generation=self._generation,
            )
        )

    def as_list(self) -> list[Condition]:
        """All conditions so far."""
        return list(self._conditions)

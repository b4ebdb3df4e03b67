"""Conditions by KEP-1623: one entry per type, each saying which generation of the spec it speaks of."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tidewheel.crds.base import Record, Timestamp


class ConditionStatus(StrEnum):
    """The three values of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Record):
    """One condition of an object's status."""

    type: Annotated[str, Field(min_length=1, max_length=64, description="What the condition speaks of, such as Ready.")]
    status: Annotated[ConditionStatus, Field(description="True, False or Unknown.")]
    reason: Annotated[
        str,
        Field(
            min_length=1,
            max_length=128,
            pattern=r"^[A-Za-z]([A-Za-z0-9]*)$",
            description="One CamelCase word for programs.",
        ),
    ]
    message: Annotated[
        str, Field(max_length=2048, description="One sentence for people: what is so, and the way out.")
    ] = ""
    last_transition_time: Annotated[Timestamp, Field(description="When the status last changed.")]
    observed_generation: Annotated[int, Field(ge=0, description="Generation of the spec this condition speaks of.")]


def roll_up(conditions: Iterable[Condition], parts: Iterable[str], *, generation: int) -> ConditionStatus:
    """True only when every part is True at the current generation; an absent or older part is Unknown (kserve#6043)."""
    by_type = {condition.type: condition for condition in conditions}
    result = ConditionStatus.TRUE
    for part in parts:
        condition = by_type.get(part)
        if condition is None or condition.observed_generation != generation:
            result = ConditionStatus.UNKNOWN
        elif condition.status is ConditionStatus.FALSE:
            return ConditionStatus.FALSE
        elif condition.status is ConditionStatus.UNKNOWN:
            result = ConditionStatus.UNKNOWN
    return result

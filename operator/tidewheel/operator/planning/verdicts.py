"""What a planner found, before it becomes a condition."""

from typing import NamedTuple


class Finding(NamedTuple):
    """A CamelCase reason for programs and a sentence for people."""

    reason: str
    message: str


class RuleVerdict(NamedTuple):
    """What stands between a rule and its split; all None: the split in force is the one wanted."""

    refused: Finding | None = None
    """The rule cannot be obeyed as it is written."""
    rejected: Finding | None = None
    """It names a version that was rolled back."""
    overridden: Finding | None = None
    """A person set another split, which stays."""
    waiting: Finding | None = None
    """It will be obeyed once there is capacity."""
    awaited: tuple[str, ...] = ()
    """The versions whose capacity it waits for."""
    stalled: Finding | None = None
    """The table itself is in the way."""
    degraded: Finding | None = None
    """Something is wrong while traffic moves."""
    judged: Finding | None = None
    """What the judge said last of the step under way."""

"""The words that ``spec.rollout`` chooses among, for the schema and for the planner and judge that obey them."""

from enum import StrEnum


class OnCapacity(StrEnum):
    """What to do where both versions do not fit."""

    SURGE = "Surge"
    """Base keeps its full size until the promotion is over: rollback is instant."""
    REPLACE = "Replace"
    """Base shrinks as the canary grows: it fits, and rollback waits for replicas."""


class Mode(StrEnum):
    """How the judge's limits are acted upon."""

    EVIDENCE = "evidence"
    """Only on evidence that stays valid however often one looks."""
    LIMITS = "limits"
    """The literal limits over a short window: no error control."""
    OBSERVE = "observe"
    """As ``evidence``, computed and recorded; time alone advances."""


class Metric(StrEnum):
    """The metrics that the judge knows by itself."""

    ERRORS = "errors"
    TPOT_SLO = "tpot-slo"
    TPOT = "tpot"
    TTFT_SLO = "ttft-slo"
    TTFT = "ttft"
    STALLS = "stalls"


class Patience(StrEnum):
    """What follows once something has lasted too long: too little to judge by, or a base without replicas."""

    HOLD = "hold"
    ADVANCE = "advance"


class OnBlind(StrEnum):
    """What follows once nothing could be judged for too long; there is no advance."""

    HOLD = "hold"
    ROLLBACK = "rollback"


class OnBreach(StrEnum):
    """What an evident loss of quality does."""

    HOLD = "hold"
    ROLLBACK = "rollback"


class Direction(StrEnum):
    """Which way a user's metric gets worse."""

    HIGHER_IS_WORSE = "HigherIsWorse"
    LOWER_IS_WORSE = "LowerIsWorse"

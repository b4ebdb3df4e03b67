"""What the judge says: a verdict with its numbers and one sentence."""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, inf, log

from tidewheel.rollout.judge.readings import Seconds

_LARGEST_EXPONENT = 700.0


class VerdictKind(StrEnum):
    """First match wins, in this order."""

    BLIND = "BLIND"
    """Data missing or wrong: hold, clock stopped."""
    BREACH = "BREACH"
    """Worse than a limit allows, on evidence: roll back."""
    SKEWED = "SKEWED"
    """The arms cannot be compared: hold, clock stopped."""
    SUSPECT = "SUSPECT"
    """Over a limit, but it may be chance: hold, clock runs."""
    CLEAR = "CLEAR"
    """The harm that this step must rule out is ruled out: advance once the bake is over."""
    THIN = "THIN"
    """Too little data to rule it out: hold, clock runs."""


class Standing(StrEnum):
    """How one metric stands."""

    BREACH = "breach"
    SUSPECT = "suspect"
    BOTH_OVER = "both over"
    CLEAR = "clear"
    THIN = "thin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One metric's numbers. ``evidence`` and ``ruled_out`` are natural logarithms of odds against chance."""

    metric: str
    standing: Standing
    canary: float | None
    base: float | None
    estimate: float | None
    """What is held against the limit: a difference of rates, a ratio, or a share."""
    limit: float
    canary_samples: float
    base_samples: float
    evidence: float = 0.0
    needed: float = inf
    ruled_out: float | None = None
    dry_run: bool = False
    off_scale: bool = False
    """The canary's value lies beyond the last bucket; ``estimate`` is a lower bound."""
    words: str = ""

    @property
    def is_over_limit(self) -> bool:
        """Strictly over, as estimated."""
        return self.estimate is not None and self.estimate > self.limit

    def inert(self) -> "Finding":
        """The same numbers, for a metric that only watches."""
        return replace(self, dry_run=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of one tick. ``credit``: the stretch that the bake clock may count, once."""

    rollout_id: str
    step: int
    at: Seconds
    kind: VerdictKind
    reason: str
    message: str
    findings: tuple[Finding, ...] = ()
    credit: tuple[Seconds, Seconds] | None = None
    narrowed: str = ""
    """What is compared roughly only or not at all, and why; empty: everything is compared in full."""
    canary_requests: float = 0.0
    base_requests: float = 0.0
    seconds_to_decision: Seconds | None = None
    """At the present growth of evidence; None: cannot be told."""

    @property
    def rolls_back(self) -> bool:
        """Only a breach does."""
        return self.kind is VerdictKind.BREACH

    @property
    def stops_clock(self) -> bool:
        """Nothing could be judged, so no time was judged."""
        return self.kind in {VerdictKind.BLIND, VerdictKind.SKEWED}


def odds(logarithm: float) -> float:
    """Odds from their logarithm, without overflow."""
    return exp(min(logarithm, _LARGEST_EXPONENT))


def odds_in_words(logarithm: float) -> str:
    """``310:1``, ``0.4:1``, ``over a million:1``."""
    if logarithm > log(1e6):
        return "over a million:1"
    value = odds(logarithm)
    return f"{value:.0f}:1" if value >= 10 else f"{value:.1g}:1" if value >= 0.1 else "0:1"


def percent(rate: float) -> str:
    """``0.15 %``."""
    return f"{rate * 100:.3g} %"


def milliseconds(seconds: float) -> str:
    """``41 ms``; seconds from 10 s."""
    return f"{seconds:.3g} s" if seconds >= 10 else f"{seconds * 1000:.3g} ms"

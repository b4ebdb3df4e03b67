"""Declared events: what history cannot know. They multiply the forecast, and expire by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidewheel.autoscaler.errors import EventError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredEvent:
    """Times in seconds since the epoch."""

    name: str
    start: float
    end: float
    multiplier: float
    ramp_seconds: float = 0.0
    """Demand rises over so long before ``start`` and falls over so long after ``end``."""
    confidence: float = 1.0
    """Share of the extra demand that is prepared for."""

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise EventError(f"event {self.name}: end must be after start")
        if self.multiplier <= 0 or not 0 <= self.confidence <= 1 or self.ramp_seconds < 0:
            raise EventError(
                f"event {self.name}: multiplier must be above 0, confidence within 0 and 1, ramp 0 or more"
            )

    def factor(self, at: float) -> float:
        """What it multiplies the forecast for ``at`` by."""
        if self.ramp_seconds:
            rise = (at - self.start + self.ramp_seconds) / self.ramp_seconds
            fall = (self.end + self.ramp_seconds - at) / self.ramp_seconds
            share = max(0.0, min(1.0, rise, fall))
        else:
            share = 1.0 if self.start <= at < self.end else 0.0
        return 1.0 + (self.multiplier - 1.0) * self.confidence * share

    def is_over(self, at: float) -> bool:
        """Nothing of it is left."""
        return at >= self.end + self.ramp_seconds

    def touches(self, at: float) -> bool:
        """Demand at ``at`` is the event's, and stays out of the profile."""
        return self.start - self.ramp_seconds <= at < self.end + self.ramp_seconds


def event_factor(events: Sequence[DeclaredEvent], at: float) -> float:
    """Of all events together: they are independent reasons, and multiply."""
    factor = 1.0
    for event in events:
        factor *= event.factor(at)
    return factor


def checked_against(event: DeclaredEvent, *, now: float, seen_ratio: float, patience_seconds: float) -> DeclaredEvent:
    """The event as far as it is still believed: one that began and did not come loses its confidence by and by.

    ``seen_ratio`` is actual demand over the forecast without the event; ``patience_seconds`` after its start the extra
    demand prepared for falls linearly to what is seen, over the same time again.
    """
    late = (now - event.start - patience_seconds) / max(patience_seconds, 1.0)
    promised = (event.multiplier - 1.0) * event.confidence
    if late <= 0 or promised <= 0:
        return event
    seen = max(0.0, min(1.0, (seen_ratio - 1.0) / promised))
    kept = max(seen, 1.0 - late)
    return event if kept >= 1 else replace(event, confidence=event.confidence * kept)

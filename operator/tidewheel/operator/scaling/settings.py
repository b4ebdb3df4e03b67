"""How the scaling loop runs; every duration in seconds."""

from dataclasses import dataclass, field

from tidewheel.autoscaler.ladder import LadderSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """Defaults are for production; tests shorten them."""

    period_seconds: float = 15.0
    """Between two looks at all models."""
    window_seconds: float = 60.0
    """Present demand is the rate over so long: at least four scrapes."""
    step_seconds: int = 300
    """Length of a bucket of history."""
    cold_start_prior_seconds: float = 180.0
    """A start, before any was measured."""
    save_seconds: float = 900.0
    """How often the profile is written to its ConfigMap."""
    past_patience_seconds: float = 300.0
    """After an operator's start nothing shrinks before history was read, or before so long."""
    status_seconds: float = 300.0
    """How old the numbers in a status may get while nothing of weight changes."""
    gpu_budget: int | None = None
    """GPUs (replicas, for CPU replicas) of all scaled versions together; None: no limit."""
    prior_decode_tokens: float = 1_000.0
    """Output tokens a second of a replica, before anything is known of it."""
    ladder: LadderSettings = field(default_factory=LadderSettings)

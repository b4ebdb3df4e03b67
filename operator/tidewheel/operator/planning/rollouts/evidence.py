"""What is known about a rollout that no object of the API server says, and what the plan wants to be found out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidewheel.rollout.judge.findings import Verdict
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.judge.steps import StepContext
from tidewheel.rollout.planning.detectability import TrafficFacts
from tidewheel.rollout.quality.scoring import QualitySettings, QualityVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutEvidence:
    """Of one model. ``confirmed``: every ready gateway and the generation of the table it obeys."""

    confirmed: Mapping[str, int | None] = field(default_factory=dict)
    verdict: Verdict | None = None
    quality: QualityVerdict | None = None
    traffic: TrafficFacts | None = None
    """How base has been served lately; None: not asked yet, or Prometheus does not say."""
    has_judge: bool = True
    """Whether there is a Prometheus to ask at all."""


NOTHING_KNOWN: Final = RolloutEvidence()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationOrder:
    """Ask every gateway whether it obeys this generation of this table."""

    table_uid: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingOrder:
    """Judge this step. ``ready``: replicas of both versions that serve."""

    context: StepContext
    settings: JudgeSettings
    base: str
    canary: str
    ready: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowOrder:
    """Ask one replica of each version the shadow prompts; hosts are addresses of pods."""

    rollout_id: str
    settings: QualitySettings
    base_host: str
    canary_host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOrder:
    """Find out how this version has been served lately, for the plan before the start."""

    version: str
    scrape_seconds: float

"""What a rule says about its rollout, read for the planner, with what the operator was told filled in."""

from dataclasses import dataclass
from typing import Any, Final

from tidewheel.crds.rollout import Rollout
from tidewheel.crds.rolloutchoices import OnCapacity
from tidewheel.crds.routingrule import RoutingRuleSpec
from tidewheel.rollout.configuration import RolloutConfiguration, configuration
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.machine.policy import GUIDE_STEPS, RolloutPolicy, Step

_SLOW_SCRAPE: Final = 7.5
"""From this pause on, a block takes twice as long by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDefaults:
    """What every rule starts from. ``tick_seconds`` None: the planner's own."""

    scrape_seconds: float = 5.0
    tick_seconds: float | None = None


DEFAULTS: Final = RolloutDefaults()


def read_rollout(rollout: Rollout, defaults: RolloutDefaults) -> RolloutConfiguration:
    """Raises SettingsError, which names the field and the way out."""
    written = rollout.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    judge: dict[str, Any] = {"scrapeSeconds": defaults.scrape_seconds, **written.get("judge", {})}
    judge.setdefault("blockSeconds", block_seconds(float(judge["scrapeSeconds"])))
    if defaults.tick_seconds is not None:
        written.setdefault("tickSeconds", defaults.tick_seconds)
    return configuration({**written, "judge": judge})


def replaces(rule: RoutingRuleSpec) -> bool:
    """Whether versions make room for each other instead of standing side by side."""
    return rule.rollout.on_capacity is OnCapacity.REPLACE and bool(rule.rollout.steps)


def block_seconds(scrape_seconds: float) -> float:
    """30 s, or 60 s where scrapes are slow; never fewer than the four scrapes that a block needs."""
    return max(30.0 if scrape_seconds <= _SLOW_SCRAPE else 60.0, 4 * scrape_seconds)


def standing_still() -> RolloutConfiguration:
    """For a rollout under way whose rule cannot be read any more: nothing advances, and the way back is open."""
    policy = RolloutPolicy(steps=tuple(Step(progress) for progress in GUIDE_STEPS))
    return RolloutConfiguration(policy=policy, judge=JudgeSettings(), on_capacity=OnCapacity.SURGE)

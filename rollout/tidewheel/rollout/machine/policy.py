"""How a rollout goes, from ``spec.rollout`` of the rule."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidewheel.crds.names import TOTAL_BASIS_POINTS
from tidewheel.crds.rolloutchoices import OnBlind, Patience
from tidewheel.rollout.errors import SettingsError
from tidewheel.rollout.machine.splits import Split, between, normal
from tidewheel.rollout.planning.windows import ChangeWindow
from tidewheel.rollout.quality.scoring import QualitySettings

GUIDE_STEPS: Final = (100, 500, 2500, 5000, 10_000)


@dataclass(frozen=True, slots=True)
class Step:
    """``progress`` of the way in basis points, and its own bake time where it has one."""

    progress: int
    bake_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPolicy:
    """Steps and patience. No steps: all at once, unjudged."""

    steps: tuple[Step, ...] = ()
    bake_seconds: float = 600.0
    max_hold_seconds: float = 7200.0
    """How long THIN, SKEWED or BLIND may last before ``on_thin`` or ``on_blind`` applies."""
    on_thin: Patience = Patience.HOLD
    on_blind: OnBlind = OnBlind.HOLD
    on_base_down: Patience = Patience.ADVANCE
    base_down_seconds: float = 30.0
    """Base must be without replicas for so long: a readiness blip is no reason to move everybody."""
    blind_alert_seconds: float = 120.0
    capacity_deadline_seconds: float = 1200.0
    confirm_seconds: float = 30.0
    verdict_max_age_seconds: float = 120.0
    """An older verdict advances nothing."""
    tick_seconds: float = 5.0
    change_windows: tuple[ChangeWindow, ...] = ()
    quality: QualitySettings | None = None
    """Shadow prompts before the first weight. None: none."""

    def __post_init__(self) -> None:
        progress = [step.progress for step in self.steps]
        if any(not 0 < step <= TOTAL_BASIS_POINTS for step in progress):
            raise SettingsError("rollout.steps: each step lies above 0 and at most at 100 %")
        if any(low >= high for low, high in pairwise(progress)):
            raise SettingsError("rollout.steps must grow from one to the next; a rollout does not go back by itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """The split of a step, and how long it is judged; ``judged`` is False where base keeps nothing to compare with."""

    split: dict[str, int]
    bake_seconds: float
    judged: bool
    canary_share: float
    """Of the traffic of both arms."""


def planned_steps(
    start: Split, goal: Split, policy: RolloutPolicy, *, base: str | None, canary: str | None
) -> tuple[PlannedStep, ...]:
    """Every step that changes something; the last is the goal, whether or not it was spelled out."""
    steps = policy.steps or (Step(TOTAL_BASIS_POINTS),)
    if steps[-1].progress < TOTAL_BASIS_POINTS:
        steps = (*steps, Step(TOTAL_BASIS_POINTS))
    planned: list[PlannedStep] = []
    for step in steps:
        split = between(start, goal, step.progress)
        if split == (planned[-1].split if planned else normal(start)):
            continue
        mine, theirs = split.get(canary or "", 0), split.get(base or "", 0)
        judged = bool(policy.steps and mine and theirs)
        if not judged and step.bake_seconds:
            raise SettingsError(
                f"rollout.steps: the step at {step.progress / 100:g} % leaves base no traffic to compare with, so it "
                "cannot bake; remove its bakeSeconds"
            )
        bake = policy.bake_seconds if step.bake_seconds is None else step.bake_seconds
        share = mine / (mine + theirs) if mine else 0.0
        planned.append(
            PlannedStep(split=split, bake_seconds=bake if judged else 0.0, judged=judged, canary_share=share)
        )
    return tuple(planned)

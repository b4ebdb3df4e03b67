"""Whether both versions fit side by side, before anything is started; and the two ways out where they do not.

Surge keeps base whole beside the canary. Replace lets traffic walk: the canary starts one replica in the room that is
free, takes the share that its replicas can carry, base shrinks to what its own share needs, and the room that this
makes is for the next replica. Neither version ever serves with fewer replicas than its share asks for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidewheel.crds.names import TOTAL_BASIS_POINTS
from tidewheel.crds.rolloutchoices import OnCapacity
from tidewheel.rollout.machine.policy import PlannedStep
from tidewheel.rollout.machine.splits import Split, between

Need = Callable[[str, int], int]
"""Replicas that a version needs for a share in basis points; never fewer for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """``gpus_free``: unused in the pool now. Replicas of both versions as they are, and the GPUs each takes."""

    gpus_free: int
    base_replicas: int
    base_gpus: int
    canary_replicas: int
    canary_gpus: int

    @property
    def total(self) -> int:
        """What both versions may have together."""
        return self.gpus_free + self.base_replicas * self.base_gpus + self.canary_replicas * self.canary_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReplicas:
    """How many replicas of each version a step ends with, and the most GPUs on the way to it."""

    base: int
    canary: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """The replicas of each step, and whether they fit. ``reason`` is one CamelCase word."""

    fits: bool
    reason: str
    message: str
    steps: tuple[StepReplicas, ...]
    peak_gpus: int


def plan_capacity(
    steps: Sequence[PlannedStep],
    *,
    start: Split,
    base: str,
    canary: str,
    need: Need,
    pool: PoolFacts,
    mode: OnCapacity,
) -> CapacityPlan:
    """Refuses what cannot fit. ``start``: the split before the first step."""
    splits = [start, *(step.split for step in steps)]
    move = _surged if mode is OnCapacity.SURGE else _replaced
    replicas = tuple(
        move(before, after, base=base, canary=canary, need=need, pool=pool) for before, after in pairwise(splits)
    )
    peak = max((step.gpus for step in replicas), default=0)
    fits = peak <= pool.total
    if fits:
        how = "side by side" if mode is OnCapacity.SURGE else "one making room for the other"
        message = f"at most {peak} of {pool.total} GPUs: {base} and {canary} fit {how} (onCapacity: {mode.value})"
    else:
        message = _refusal(base, canary, peak=peak, total=pool.total, mode=mode)
    return CapacityPlan(
        fits=fits, reason="Fits" if fits else "DoesNotFit", message=message, steps=replicas, peak_gpus=peak
    )


def as_far_as(before: Split, after: Split, *, version: str, replicas: int, need: Need) -> dict[str, int]:
    """The split furthest on the way from ``before`` to ``after`` at which so many replicas of ``version`` suffice."""
    low, high = 0, TOTAL_BASIS_POINTS + 1
    while high - low > 1:
        middle = (low + high) // 2
        share = between(before, after, middle).get(version, 0)
        low, high = (middle, high) if need(version, share) <= replicas else (low, middle)
    return between(before, after, low)


def _surged(before: Split, after: Split, *, base: str, canary: str, need: Need, pool: PoolFacts) -> StepReplicas:
    del before
    kept = max(pool.base_replicas, need(base, after[base]) if after.get(base) else 0)
    mine = max(1, need(canary, after.get(canary, 0)))
    return StepReplicas(base=kept, canary=mine, gpus=kept * pool.base_gpus + mine * pool.canary_gpus)


def _replaced(before: Split, after: Split, *, base: str, canary: str, need: Need, pool: PoolFacts) -> StepReplicas:
    """Replica by replica, as the step machine walks: the next one of the canary stands beside what base still needs."""

    def of_base(split: Split) -> int:
        return max(1, need(base, split[base])) if split.get(base) else 0

    mine = max(1, need(canary, after.get(canary, 0)))
    have = need(canary, before[canary]) if before.get(canary) else 0
    peak = of_base(after) * pool.base_gpus + mine * pool.canary_gpus
    for replicas in range(have, mine):
        reached = as_far_as(before, after, version=canary, replicas=replicas, need=need) if replicas else before
        peak = max(peak, of_base(reached) * pool.base_gpus + (replicas + 1) * pool.canary_gpus)
    return StepReplicas(base=of_base(after), canary=mine, gpus=peak)


def _refusal(base: str, canary: str, *, peak: int, total: int, mode: OnCapacity) -> str:
    needs = f"{base} and {canary} need {peak} GPUs at the widest step, the pool has {total}"
    if mode is OnCapacity.SURGE:
        return (
            f"{needs}. Free {peak - total} GPUs, or set rollout.onCapacity: Replace, which shrinks {base} as {canary} "
            "grows and gives up instant rollback"
        )
    return f"{needs} even with onCapacity: Replace. Free {peak - total} GPUs, or make the versions smaller"

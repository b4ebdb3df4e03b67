"""From what a model needs to the replicas of one version, at whatever share of the traffic it has or will have."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidewheel.autoscaler.capacity import ReplicaCapacity
from tidewheel.autoscaler.outlook import Outlook
from tidewheel.autoscaler.units import Unit


class Mode(StrEnum):
    """How far the autoscaler may go."""

    OBSERVE = "observe"
    """Measure and forecast; the size stays."""
    ADVISE = "advise"
    """Say in the status what would be ordered; the size stays."""
    FLOOR = "floor"
    """Raise the size, never lower it."""
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What limits the size, whatever the demand."""

    minimum: int = 0
    maximum: int
    spare: int = 1
    budget: int | None = None
    """Replicas that the GPU budget still allows this version."""
    mode: Mode = Mode.FULL
    scale_to_zero: bool = False

    @property
    def ceiling(self) -> int:
        """The lower of maximum and budget."""
        return self.maximum if self.budget is None else min(self.maximum, self.budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What all of the model's traffic would need on this version; sizes for a share follow from it."""

    whole: float
    """Replicas, not rounded, for all of the traffic."""
    present_whole: float
    """The same for the demand of this moment alone."""
    expected_whole: float
    """The same for what is forecast, without margin and hold: beyond it the ladder begins."""
    binding: Unit
    """The unit that runs out first."""
    bounds: Bounds
    blind: bool = False

    def wanted(self, share: int) -> int:
        """Replicas for ``share`` basis points, spare included, before the ceiling."""
        need = self.whole * share / 10_000
        if need <= 1e-9:
            return 0 if self.bounds.scale_to_zero else max(self.bounds.minimum, 1)
        return max(math.ceil(need - 1e-9) + self.bounds.spare, self.bounds.minimum, 1)

    def size(self, share: int, *, present: int) -> int:
        """What to run for ``share``, given that ``present`` run: bounded, never less while blind."""
        allowed = max(min(self.wanted(share), self.bounds.ceiling), min(self.bounds.minimum, self.bounds.ceiling))
        if self.bounds.mode in (Mode.OBSERVE, Mode.ADVISE):
            return max(present, self.bounds.minimum)
        if self.blind or self.bounds.mode is Mode.FLOOR:
            return max(allowed, min(present, self.bounds.maximum))
        return allowed

    def shortfall(self, share: int) -> int:
        """Replicas that are needed and not allowed."""
        return max(0, self.wanted(share) - self.bounds.ceiling)


def plan_load(outlook: Outlook, capacity: ReplicaCapacity, bounds: Bounds) -> LoadPlan:
    """The most that any unit asks for (A05): never a sum, never a mean."""
    asked = {entry.unit: _ratio(entry.need, capacity.of(entry.unit)) for entry in outlook.units}
    present = [_ratio(entry.present or 0.0, capacity.of(entry.unit)) for entry in outlook.units]
    expected = [_ratio(max(entry.peak, entry.present or 0.0), capacity.of(entry.unit)) for entry in outlook.units]
    # Where prefill rides along with decode both run out together; people think in decode.
    binding = max(asked, key=lambda unit: (round(asked[unit], 6), unit is Unit.DECODE))
    return LoadPlan(
        whole=asked[binding],
        present_whole=max(present),
        expected_whole=max(expected),
        binding=binding,
        bounds=bounds,
        blind=outlook.is_blind,
    )


def ready_within(ready: int, expected_ready: Sequence[float], by: float) -> int:
    """Replicas that serve at ``by``: those that do, and those on their way that are due by then (A23)."""
    return ready + sum(moment <= by for moment in expected_ready)


def _ratio(need: float, capacity: float) -> float:
    return need / capacity if capacity > 0 else 0.0

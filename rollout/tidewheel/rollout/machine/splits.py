"""Splits in basis points, exact to the last one."""

from collections.abc import Mapping

from tidewheel.crds.names import TOTAL_BASIS_POINTS
from tidewheel.rollout.errors import SettingsError

Split = Mapping[str, int]
"""Version to its share in basis points; what is not named has none. Sums to 10,000."""


def normal(split: Split) -> dict[str, int]:
    """Without the versions that have no share, so that equal splits are equal."""
    return {version: share for version, share in sorted(split.items()) if share}


def growing(current: Split, goal: Split) -> dict[str, int]:
    """Versions whose share grows, with the share they get."""
    return {version: share for version, share in sorted(goal.items()) if share > current.get(version, 0)}


def shrinking(current: Split, goal: Split) -> dict[str, int]:
    """Versions whose share shrinks, with the share they keep."""
    return {version: goal.get(version, 0) for version, share in sorted(current.items()) if goal.get(version, 0) < share}


def between(start: Split, goal: Split, progress: int) -> dict[str, int]:
    """``start + (goal - start) * progress``, rounded so that it sums exactly; progress in basis points of the way.

    Every version but the base is rounded by itself, towards where it comes from, yet a growing one gets at least one
    basis point. The base, which loses most, has the rest, and never less than at the goal: what the others that shrink
    kept by rounding they then give up. So shares never move back from one step to the next.
    """
    if not 0 <= progress <= TOTAL_BASIS_POINTS:
        raise SettingsError(f"progress of {progress} basis points: a step lies between 0 and {TOTAL_BASIS_POINTS:,}")
    if progress in (0, TOTAL_BASIS_POINTS):
        return normal(goal if progress else start)
    base = base_of(start, goal)
    split = {}
    for version in {*start, *goal} - {base}:
        old, new = start.get(version, 0), goal.get(version, 0)
        moved = abs(new - old) * progress // TOTAL_BASIS_POINTS
        split[version] = old + max(moved, 1) if new > old else old - moved
    if base is not None:
        short = goal.get(base, 0) + sum(split.values()) - TOTAL_BASIS_POINTS
        for version in sorted(shrinking(start, goal).keys() - {base}):
            if short <= 0:
                break
            given = min(split[version] - goal.get(version, 0), short)
            split[version], short = split[version] - given, short - given
        split[base] = TOTAL_BASIS_POINTS - sum(split.values())
    return normal(split)


def base_of(start: Split, goal: Split) -> str | None:
    """The version that loses most; of equals the first by name. None where nothing shrinks."""
    losses = {version: start[version] - share for version, share in shrinking(start, goal).items()}
    return max(sorted(losses), key=lambda version: losses[version], default=None)


def in_words(split: Split) -> str:
    """``v42:95% v43:5%``."""
    return " ".join(f"{version}:{share / 100:g}%" for version, share in sorted(split.items()) if share) or "nothing"

"""When there will be enough, counting replicas on their way: for a queue, and for those who are refused."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds; None is unknown, and is said as unknown."""

    p50: float | None
    p90: float | None


UNKNOWN: Final = Eta(None, None)


def queue_eta(
    *, ahead: float, ready_rate: float, arriving: Sequence[tuple[float, float, float]], horizon_seconds: float = 3600.0
) -> Eta:
    """Until ``ahead`` tokens are worked off at ``ready_rate`` tok/s plus those of replicas on their way.

    ``arriving`` has for each its ready time at p50 and at p90, in seconds from now, and its rate.
    """
    return Eta(
        p50=_worked_off(ahead, ready_rate, [(p50, rate) for p50, _, rate in arriving], horizon_seconds),
        # Late replicas, and replicas that work a tenth slower than they should.
        p90=_worked_off(ahead, 0.9 * ready_rate, [(p90, 0.9 * rate) for _, p90, rate in arriving], horizon_seconds),
    )


def relief_eta(*, need: float, ready: int, arriving: Sequence[tuple[float, float]]) -> Eta:
    """Until ready replicas and those on their way carry ``need`` replicas of demand.

    ``arriving`` has for each its ready time at p50 and at p90, in seconds from now. Unknown where they are too few.
    """
    missing = math.ceil(need - ready - 1e-9)
    if missing <= 0:
        return Eta(0.0, 0.0)
    if missing > len(arriving):
        return UNKNOWN
    return Eta(*(max(0.0, sorted(times)[missing - 1]) for times in zip(*arriving, strict=True)))


def _worked_off(ahead: float, rate: float, arriving: Sequence[tuple[float, float]], horizon: float) -> float | None:
    now = 0.0
    for at, more in sorted(arriving):
        done = rate * (at - now)
        if rate > 0 and done >= ahead:
            break
        ahead -= max(done, 0.0)
        now, rate = max(at, now), rate + more
    if ahead <= 0:
        return now
    if rate <= 0:
        return None
    finished = now + ahead / rate
    return finished if finished <= horizon else None

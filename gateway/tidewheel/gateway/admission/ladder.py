"""The degradation ladder: what each rung takes from whom, cheapest first, and what users are told.

Rung 1 pauses background work, 2 shortens replies of all but paid users, 3 answers them from a smaller model, 4 is the
queue, which is always there, and 5 refuses free users. The table says the rung; a gateway climbs to 4 and 5 by itself:
it queues what does not fit, and refuses what would wait longer than its lane may.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidewheel.crds.routingtable import Relief
from tidewheel.crds.tiers import Lane, Tier, Tiers
from tidewheel.gateway.errors import GatewayError

PAUSE_BACKGROUND: Final = 1
SHORTEN: Final = 2
SMALLER_MODEL: Final = 3
QUEUE: Final = 4
SHED_FREE: Final = 5
_REDUCED_OUTPUT: Final = 512
_NO_LIMITS: Final = Tier()


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that users are told: ``kind`` for programs, ``message`` for people."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Course:
    """How a request is treated. ``fallback_model`` answers instead of the one asked for, where it can be reached."""

    tier: str
    limits: Tier
    lane: str
    most_output: int | None
    fallback_model: str | None = None
    notices: tuple[Notice, ...] = ()


def tier_limits(tiers: Tiers | None, tier: str) -> Tier:
    """What a rule says of a tier; nothing said is no limit."""
    return getattr(tiers, tier, None) or _NO_LIMITS


def own_lane(limits: Tier, tier: str) -> str:
    """The lane of a tier's requests, unless they say that they can wait."""
    return (limits.lane or Lane(tier)).value


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds until there is capacity again, as likely less as more, and in nine of ten cases; None: not known."""

    p50: float | None = None
    p90: float | None = None


UNKNOWN: Final = Wait()


def wait_for(relief: Relief | None, now: float) -> Wait:
    """From what the operator expects; a moment that has passed tells nothing."""
    if relief is None:
        return UNKNOWN
    p50, p90 = (datetime.fromisoformat(moment).timestamp() - now for moment in (relief.p50, relief.p90))
    return Wait(max(1.0, p50), max(1.0, p50, p90)) if p90 > 0 else UNKNOWN


def steer(
    tiers: Tiers | None,
    tier: str,
    *,
    rung: int,
    pause_seconds: float,
    background: bool = False,
    wait: Wait = UNKNOWN,
) -> Course:
    """How a request of this tier is treated at this rung. Raises GatewayError 429 where it is not served now.

    Work in the ``background`` keeps its tier's limits and waits in the background lane. ``pause_seconds``: when to come
    back where it is not known when there will be capacity.
    """
    limits = tier_limits(tiers, tier)
    lane = Lane.BACKGROUND.value if background else own_lane(limits, tier)
    if lane == Lane.PAID:
        return Course(tier, limits, lane, limits.max_output_tokens)
    if lane == Lane.BACKGROUND and rung >= PAUSE_BACKGROUND:
        message = "Background work is paused because capacity is short."
        raise _refused(limits, message, code="background_paused", wait=wait, seconds=pause_seconds)
    if rung >= SHED_FREE:
        message = "Free use is suspended for a while because capacity is short."
        raise _refused(limits, message, code="free_tier_suspended", wait=wait, seconds=pause_seconds)
    most, notices = limits.max_output_tokens, list[Notice]()
    if rung >= SHORTEN:
        most = _reduced(limits)
        notices.append(Notice("output_reduced", _said(limits, f"Replies are limited to {most} tokens for now.")))
    fallback = limits.fallback_model if rung >= SMALLER_MODEL else None
    return Course(tier, limits, lane, most, fallback_model=fallback, notices=tuple(notices))


def fallback_notice(course: Course, *, asked: str) -> Notice:
    """That a smaller model answers."""
    text = f"'{course.fallback_model}' answers instead of '{asked}' for now."
    return Notice("model_fallback", _said(course.limits, text))


def _reduced(limits: Tier) -> int:
    half = limits.max_output_tokens // 2 if limits.max_output_tokens else _REDUCED_OUTPUT
    reduced = limits.reduced_output_tokens or max(1, half)
    return min(reduced, limits.max_output_tokens or reduced)


def _said(limits: Tier, text: str) -> str:
    return f"{text} {limits.message}".strip()


def _refused(limits: Tier, text: str, *, code: str, wait: Wait, seconds: float) -> GatewayError:
    if wait.p50 is None or wait.p90 is None:
        text, extra = f"{text} It is not known yet when there will be more.", dict[str, object](eta_ms=None)
    else:
        seconds = wait.p50
        text = f"{text} More is expected in about {wait.p50:.0f} seconds, most likely within {wait.p90:.0f}."
        extra = {"eta_ms": round(wait.p50 * 1000), "eta_p90_ms": round(wait.p90 * 1000)}
    headers = (("x-should-retry", "false"),) if seconds > 120 else ()
    return GatewayError(429, _said(limits, text), code=code, retry_after=seconds, headers=headers, extra=extra)

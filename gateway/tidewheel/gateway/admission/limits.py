"""From a tier's limits to counters, and from counters to what clients are told."""

import math
from collections.abc import Sequence

from tidewheel.gateway.admission.keys import Principal
from tidewheel.gateway.admission.ladder import Course
from tidewheel.gateway.admission.quota import Limit, Shortage, Standing
from tidewheel.gateway.admission.tokens import Cost
from tidewheel.gateway.errors import GatewayError, InvalidRequestError
from tidewheel.gateway.snapshot import ModelKey

_LONGEST_RETRY: float = 120.0


def limits_of(course: Course, *, principal: Principal, model: ModelKey, cost: Cost) -> list[tuple[Limit, float]]:
    """Every counter of a request and what it takes of it: the user's tokens and requests, the tier's tokens."""
    tier, found = course.limits, list[tuple[Limit, float]]()
    user = (principal.user, *model, course.tier)
    if tier.requests_per_minute is not None:
        capacity = float(tier.requests_per_minute)
        found.append((Limit(("requests", *user), "requests", capacity, capacity / 60), 1.0))
    if tier.tokens_per_minute is not None:
        capacity = float(tier.burst_tokens or tier.tokens_per_minute)
        limit = Limit(("tokens", *user), "tokens", capacity, tier.tokens_per_minute / 60)
        found.append((limit, float(cost.reserved)))
    if tier.total_tokens_per_minute is not None:
        capacity = float(tier.total_tokens_per_minute)
        limit = Limit(("total", *model, course.tier), "tokens", capacity, capacity / 60)
        found.append((limit, float(cost.reserved)))
    return found


def require_possible(limits: Sequence[tuple[Limit, float]], cost: Cost) -> None:
    """A request that costs more than a counter can ever hold must change; waiting would not help."""
    for limit, amount in limits:
        if amount > limit.capacity:
            message = (
                f"This request may cost {cost.reserved} tokens (prompt about {cost.prompt}, reply up to {cost.output}),"
                f" more than the {limit.capacity:.0f} that may be spent at once; shorten it or lower max_tokens."
            )
            raise InvalidRequestError(message, code="request_exceeds_quota", param="max_tokens")


def refuse_shortage(shortage: Shortage, course: Course) -> GatewayError:
    """429 with the time after which it would fit."""
    seconds = max(1.0, shortage.wait)
    whose = "all users of this tier together" if shortage.limit.key[0] == "total" else "this user"
    message = (
        f"The quota of {whose} for this model is used up: {max(0, math.floor(shortage.level))} of "
        f"{shortage.limit.capacity:.0f} {shortage.limit.unit} are left; try again in {seconds:.0f} seconds."
    )
    standing = Standing(shortage.limit, max(0.0, min(shortage.level, shortage.limit.capacity)))
    headers = quota_headers([standing])
    if seconds > _LONGEST_RETRY:
        headers.append(("x-should-retry", "false"))
    return GatewayError(
        429,
        f"{message} {course.limits.message}".strip(),
        code="rate_limit_exceeded",
        retry_after=seconds,
        headers=tuple(headers),
    )


def quota_headers(standings: Sequence[Standing]) -> list[tuple[str, str]]:
    """``x-ratelimit-*``: of each unit, the counter with the least left."""
    headers = list[tuple[str, str]]()
    for unit in ("requests", "tokens"):
        of_unit = [standing for standing in standings if standing.limit.unit == unit]
        if not of_unit:
            continue
        least = min(of_unit, key=lambda standing: standing.remaining)
        headers += [
            (f"x-ratelimit-limit-{unit}", f"{least.limit.capacity:.0f}"),
            (f"x-ratelimit-remaining-{unit}", str(math.floor(least.remaining))),
            (f"x-ratelimit-reset-{unit}", duration(least.reset_seconds)),
        ]
    return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it: ``120ms``, ``1s``, ``6m0s``; rounded up, so that it is never too early."""
    if seconds <= 0:
        return "0s"
    if seconds < 1:
        return f"{max(1, math.ceil(seconds * 1000))}ms"
    whole = math.ceil(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"

"""The degradation ladder: what is given up, cheapest first, when capacity is short.

A rung is climbed on *forecast* shortage, one per period, before anything saturates; measured saturation may jump.
Going down is slower than going up: a lower threshold, and a minimum time on each rung.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Rung(IntEnum):
    """What gateways do at each; every rung includes those below it."""

    NONE = 0
    PAUSE_BACKGROUND = 1
    SHORTEN = 2
    SMALLER_MODEL = 3
    QUEUE = 4
    SHED = 5


WORDS: Final = {
    Rung.NONE: "full service",
    Rung.PAUSE_BACKGROUND: "background work is paused",
    Rung.SHORTEN: "free replies are shorter and prefer the fast model",
    Rung.SMALLER_MODEL: "free users get a smaller model, and are told so",
    Rung.QUEUE: "requests wait in a bounded queue with an honest ETA",
    Rung.SHED: "free requests are refused with a time to come back",
}
_ENTRY: Final = (0.0, 1.0, 1.1, 1.25, 1.5, 2.0)
"""Rung r is entered when need / supply is above this."""
_EXIT: Final = (0.0, 0.98, 1.05, 1.15, 1.35, 1.8)
"""Rung r is left when need / supply is below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderSettings:
    """How fast it moves."""

    period_seconds: float = 60.0
    """At most one rung up in so long, on forecasts."""
    minimum_seconds: float = 180.0
    """A rung is kept at least so long before the next one down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderState:
    """Where it stands and since when, in seconds since the epoch."""

    rung: Rung = Rung.NONE
    since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStep:
    """The state from now on, and why."""

    state: LadderState
    changed: bool
    message: str


def climb(
    state: LadderState,
    *,
    now: float,
    forecast_need: float,
    forecast_supply: float,
    present_need: float,
    present_supply: float,
    settings: LadderSettings,
) -> LadderStep:
    """One look. Needs and supplies in replicas; a supply of 0 with any need is the worst shortage.

    Needs are what is expected, without margin: the margin is there to be used before anybody gives anything up.
    """
    ahead = _pressure(forecast_need, forecast_supply)
    present = _pressure(present_need, present_supply)
    worst = max(ahead, present)
    target = max(rung for rung in Rung if worst > _ENTRY[rung] or rung is Rung.NONE)
    saturated = max(rung for rung in Rung if present > _ENTRY[rung] or rung is Rung.NONE)
    held = now - state.since
    if saturated > state.rung and present > 1:
        return _to(state, saturated, now, f"demand is {present:.0%} of ready capacity")
    if target > state.rung and (held >= settings.period_seconds or state.rung is Rung.NONE):
        words = f"need is forecast at {ahead:.0%} of what will be ready"
        return _to(state, Rung(state.rung + 1), now, words if ahead >= present else f"demand is {present:.0%} of it")
    if state.rung and worst < _EXIT[state.rung] and held >= settings.minimum_seconds:
        return _to(state, Rung(state.rung - 1), now, f"need is back at {worst:.0%} of capacity")
    return LadderStep(state=state, changed=False, message=WORDS[state.rung])


def _pressure(need: float, supply: float) -> float:
    if need <= 0:
        return 0.0
    return need / supply if supply > 0 else float("inf")


def _to(state: LadderState, rung: Rung, now: float, why: str) -> LadderStep:
    way = "up" if rung > state.rung else "down"
    message = f"ladder {way} from {state.rung.value} to {rung.value}: {WORDS[rung]}, for {why}"
    return LadderStep(state=LadderState(rung=rung, since=now), changed=True, message=message)

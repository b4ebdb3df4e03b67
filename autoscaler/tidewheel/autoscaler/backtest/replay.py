"""Plays a series to the policies and scores what they would have had ready."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tidewheel.autoscaler.backtest.policies import (
    DemandHpa,
    FixedHeadroom,
    Forecasts,
    LastValue,
    Oracle,
    Ours,
    Policy,
    SeasonalNaive,
)
from tidewheel.autoscaler.backtest.series import Series
from tidewheel.autoscaler.forecast.calendar import Calendar
from tidewheel.autoscaler.forecast.history import Bools, Floats

OURS: Final = "ours"
HPA: Final = "hpa_tuned"
_UTILISATIONS: Final = tuple(round(1.0 - 0.02 * step, 2) for step in range(48))


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a policy would have given, after the warm-up."""

    policy: str
    missed_percent: float
    """Share of offered load above ready capacity."""
    short_percent: float
    """Share of buckets with demand above ready capacity."""
    gpu_hours: float
    """Replica-hours ordered, those that start included (a replica of one GPU)."""
    gpu_hours_vs_perfect: float
    """Against a clairvoyant without lead."""
    setting: str = ""
    """The knob, where the policy has one."""


def replay(policy: Policy, series: Series) -> Floats:
    """Orders by bucket: entry t was placed when bucket t had ended."""
    orders = np.empty(series.values.size)
    for index, value in enumerate(series.values.tolist()):
        orders[index] = policy.order(series.first_bucket + index, None if math.isnan(value) else value)
    return orders


def ready_capacity(orders: Floats, lead_buckets: int) -> Floats:
    """What serves during each bucket: the least that was ordered from its start back to ``lead`` before.

    An order placed at the end of bucket t serves from ``lead`` later; one taken back drops what still starts first.
    """
    lagged = np.concatenate([orders[:1], orders[:-1]])
    padded = np.concatenate([np.full(lead_buckets, lagged[0]), lagged])
    windows = np.lib.stride_tricks.sliding_window_view(padded, lead_buckets + 1)
    return np.asarray(windows.min(axis=1), dtype=np.float64)


def score(name: str, orders: Floats, series: Series, lead_buckets: int, *, setting: str = "") -> Score:
    """Over the buckets after the warm-up in which demand is known."""
    counted: Bools = np.isfinite(series.values)
    counted[: series.warm_up] = False
    demand = series.values[counted]
    capacity = ready_capacity(orders, lead_buckets)[counted]
    hours = series.step_seconds / 3600
    ordered = float(orders[counted].sum()) * hours
    perfect = float(np.maximum(np.ceil(demand), 1.0).sum()) * hours
    return Score(
        policy=name,
        missed_percent=100 * float(np.maximum(demand - capacity, 0.0).sum()) / max(float(demand.sum()), 1e-12),
        short_percent=100 * float((demand > capacity).mean()),
        gpu_hours=ordered,
        gpu_hours_vs_perfect=ordered / perfect,
        setting=setting,
    )


def backtest(series: Series, *, lead_seconds: int, quantile: float = 0.99) -> list[Score]:
    """All policies, on a series in replicas; the HPA in hindsight the cheapest that misses no more than ours."""
    calendar = Calendar(series.step_seconds)
    lead = calendar.buckets(lead_seconds)

    def run(name: str, policy: Policy, setting: str = "") -> Score:
        return score(name, replay(policy, series), series, lead, setting=setting)

    forecasts = Forecasts(calendar, lead_seconds, quantile=quantile)
    ours = run(OURS, Ours(calendar, forecasts), f"margin: {quantile:g} quantile of own errors")
    return [
        ours,
        tuned_hpa(series, lead, calendar, at_most=ours.missed_percent, of=lambda found: found.missed_percent),
        run("fixed_headroom_20", FixedHeadroom(calendar, forecasts), "forecast x 1.2"),
        run("last_value", LastValue(calendar), "last 30 min x 1.2"),
        run("seasonal_naive", SeasonalNaive(calendar, lead_seconds), "same time yesterday x 1.2"),
        run("oracle", Oracle(calendar, lead_seconds, series), "knows the future up to the lead"),
    ]


def tuned_hpa(series: Series, lead: int, calendar: Calendar, *, at_most: float, of: Callable[[Score], float]) -> Score:
    """The HPA with the highest utilisation (fewest GPU-hours) at which ``of`` its score is at most ``at_most``.

    Where none reaches it, the one that comes nearest.
    """
    nearest: Score | None = None
    for utilisation in _UTILISATIONS:
        policy = DemandHpa(calendar, utilisation=utilisation)
        found = score(HPA, replay(policy, series), series, lead, setting=f"utilisation {utilisation:g}")
        if of(found) <= at_most + 1e-9:
            return found
        if nearest is None or of(found) < of(nearest):
            nearest = found
    assert nearest is not None
    return nearest

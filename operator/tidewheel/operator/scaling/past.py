"""Demand of the past, at the start of an operator: Prometheus has it, and what it keeps too short is in the profile."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Final

from tidewheel.autoscaler.cold_start import nearest_rank
from tidewheel.autoscaler.readings import Reporters
from tidewheel.autoscaler.units import Demand
from tidewheel.clients.prometheus import Prometheus, SeriesPoints
from tidewheel.operator.planning.records import ModelKey

POINTS_AT_ONCE: Final = 10_000
"""Prometheus refuses more than 11,000 of a series."""
LOW_HITS: Final = 0.1
"""Caches of new replicas are empty: of the past's hit shares a low percentile is believed."""
_LARGEST_CACHED: Final = 0.95

Values = Mapping[int, float]
"""By bucket."""


class PastReader:
    """A handful of range queries per model, once. ``window_seconds``: at least four scrapes, as for present demand."""

    def __init__(self, prometheus: Prometheus, *, step_seconds: int, window_seconds: float) -> None:
        self._prometheus = prometheus
        self._step = step_seconds
        self._window = f"{max(step_seconds, round(window_seconds))}s"

    async def read(self, key: ModelKey, *, first: int, end: int) -> Mapping[int, Demand]:
        """Buckets from ``first`` to before ``end`` of which Prometheus knows demand. Raises PrometheusError."""
        of = f'{{namespace="{key.namespace}",model="{key.model}"}}'
        offered = f"sum by (kind) (rate(tidewheel_offered_tokens_total{of}[{self._window}]))"
        kinds = await self._ask(offered, first, end, lambda series: series.labels.get("kind", ""))
        reporters = await self._one(f"count(count by (instance) (tidewheel_offered_tokens_total{of}))", first, end)
        cached = await self._one(
            f"sum(rate(tidewheel_cached_prompt_tokens_total{of}[{self._window}]))"
            f" / sum(rate(tidewheel_prompt_tokens_sum{of}[{self._window}]))",
            first,
            end,
        )
        credible = credible_buckets(reporters, step_seconds=self._step)
        return past_demand(kinds.get("prompt", {}), kinds.get("output", {}), cached=cached.values(), credible=credible)

    async def _one(self, query: str, first: int, end: int) -> Values:
        return (await self._ask(query, first, end, lambda _: "")).get("", {})

    async def _ask(
        self, query: str, first: int, end: int, name: Callable[[SeriesPoints], str]
    ) -> Mapping[str, dict[int, float]]:
        """A bucket's value is the query's at its end."""
        found: dict[str, dict[int, float]] = {}
        for begin in range(first, end, POINTS_AT_ONCE):
            until = min(begin + POINTS_AT_ONCE, end)
            answer = await self._prometheus.span(
                query, start=(begin + 1) * self._step, end=until * self._step, step_seconds=self._step
            )
            for series in answer:
                values = found.setdefault(name(series), {})
                values.update({round(at / self._step) - 1: value for at, value in series.points if isfinite(value)})
        return found


def credible_buckets(reporters: Values, *, step_seconds: int) -> frozenset[int]:
    """Buckets at whose end as many gateways reported as shortly before: half of them are not half the demand."""
    check = Reporters()
    believed = ((bucket, check.check(bucket * step_seconds, int(count))) for bucket, count in sorted(reporters.items()))
    return frozenset(bucket for bucket, found in believed if found.believed)


def past_demand(
    prompt: Values, output: Values, *, cached: Iterable[float], credible: frozenset[int]
) -> Mapping[int, Demand]:
    """Where both rates are known. KV blocks follow decode, and are not kept."""
    shares = [min(max(share, 0.0), _LARGEST_CACHED) for share in cached]
    hits = nearest_rank(shares, LOW_HITS) if shares else 0.0
    return {
        bucket: Demand(prefill=max(prompt[bucket], 0.0) * (1.0 - hits), decode=max(output[bucket], 0.0), kv_blocks=0.0)
        for bucket in sorted(prompt.keys() & output.keys() & credible)
    }


def joined(measured: Mapping[int, Demand], saved: Mapping[int, Demand]) -> tuple[int, Sequence[Demand | None]]:
    """First bucket, and every one from there to the last known; what Prometheus says holds over what was saved."""
    known = {**saved, **measured}
    if not known:
        return 0, ()
    first, last = min(known), max(known)
    return first, [known.get(bucket) for bucket in range(first, last + 1)]

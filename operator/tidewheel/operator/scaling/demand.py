"""Demand as gateways measured it, by Prometheus: one query for all models, never one per pod."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from tidewheel.clients.prometheus import Answer, Prometheus, PrometheusError
from tidewheel.operator.planning.records import ModelKey

_BY: Final = "namespace, model"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """One model: token rates offered at all gateways, what requests look like, how many gateways said so."""

    prompt_rate: float
    output_rate: float
    prompt_tokens: float = 0.0
    """Mean of a request; 0 where unknown."""
    output_tokens: float = 0.0
    output_tokens_p90: float | None = None
    cached_share: float = 0.0
    in_flight: float = 0.0
    """Requests open now, queued ones included: tokens are counted when a reply ends, and long ones end late."""
    reporters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandReading:
    """All models at one moment; a model that is not in ``models`` is missing, which is not zero."""

    at: float
    models: Mapping[ModelKey, OfferedLoad]
    error: str = ""
    """Why nothing is known, where nothing is."""


class DemandReader:
    """Asks Prometheus. ``window_seconds`` is what present demand is averaged over."""

    def __init__(self, prometheus: Prometheus, *, window_seconds: float) -> None:
        self._prometheus = prometheus
        self._window = f"{max(1, round(window_seconds))}s"

    async def read(self, at: float) -> DemandReading:
        """Never raises: an unreachable Prometheus is a reading that says so."""
        try:
            rates = await self._ask(f"sum by ({_BY}, kind) (rate(tidewheel_offered_tokens_total[{self._window}]))", at)
            reporters = await self._ask(
                f"count by ({_BY}) (count by ({_BY}, instance) (tidewheel_offered_tokens_total))", at
            )
            shapes = {name: await self._ask(query, at) for name, query in _shape_queries(self._window).items()}
        except PrometheusError as error:
            return DemandReading(at=at, models={}, error=str(error))
        return DemandReading(at=at, models=_models(rates, reporters, shapes))

    async def _ask(self, query: str, at: float) -> Answer:
        return await self._prometheus.instant(query, at=at)


def _shape_queries(window: str) -> dict[str, str]:
    def mean(metric: str) -> str:
        return f"sum by ({_BY}) (rate({metric}_sum[{window}])) / sum by ({_BY}) (rate({metric}_count[{window}]))"

    return {
        "in_flight": f"sum by ({_BY}) (tidewheel_in_flight)",
        "prompt": mean("tidewheel_prompt_tokens"),
        "output": mean("tidewheel_output_tokens"),
        "output_p90": f"histogram_quantile(0.9, sum by ({_BY}, le) (rate(tidewheel_output_tokens_bucket[{window}])))",
        "cached": f"sum by ({_BY}) (rate(tidewheel_cached_prompt_tokens_total[{window}]))"
        f" / sum by ({_BY}) (rate(tidewheel_prompt_tokens_sum[{window}]))",
    }


def _models(rates: Answer, reporters: Answer, shapes: Mapping[str, Answer]) -> Mapping[ModelKey, OfferedLoad]:
    by_kind: dict[ModelKey, dict[str, float]] = defaultdict(dict)
    for sample in rates.samples:
        key = _key(sample.labels)
        if isfinite(sample.value) and sample.value >= 0 and key.model:
            by_kind[key][sample.labels.get("kind", "")] = sample.value
    counts = _by_model(reporters)
    shape = {name: _by_model(answer) for name, answer in shapes.items()}
    return {
        key: OfferedLoad(
            prompt_rate=kinds["prompt"],
            output_rate=kinds["output"],
            prompt_tokens=shape["prompt"].get(key, 0.0),
            output_tokens=shape["output"].get(key, 0.0),
            output_tokens_p90=shape["output_p90"].get(key),
            cached_share=min(max(shape["cached"].get(key, 0.0), 0.0), 0.95),
            in_flight=max(shape["in_flight"].get(key, 0.0), 0.0),
            reporters=int(counts.get(key, 0)),
        )
        for key, kinds in by_kind.items()
        if {"prompt", "output"} <= kinds.keys()
    }


def _by_model(answer: Answer) -> dict[ModelKey, float]:
    return {_key(sample.labels): sample.value for sample in answer.samples if isfinite(sample.value)}


def _key(labels: Mapping[str, str]) -> ModelKey:
    return ModelKey(labels.get("namespace", ""), labels.get("model", ""))

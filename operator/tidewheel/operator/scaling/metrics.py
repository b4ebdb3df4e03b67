"""What the scaling loop shows to Prometheus."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from tidewheel.autoscaler.units import Unit
from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.scaling.advice import ModelAdvice

_MODEL: Final = ("namespace", "model")


class ScalingMetrics:
    """Series come with a model's first advice and go with the model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tidewheel_forecast_{name}", text, (*_MODEL, *labels), registry=registry)

        self._present = gauge("present", "Demand offered now.", "unit")
        self._ahead = gauge("ahead", "Demand forecast for now + lead, without margin.", "unit")
        self._need = gauge("need", "Demand prepared for.", "unit")
        self._margin = gauge("margin_ratio", "Factor on the forecast.", "unit")
        self._lead = gauge("lead_seconds", "How far ahead it looks.")
        self._blind = gauge("blind_seconds", "Age of the last demand known; 0 while it is fresh.")
        self._rung = gauge("rung", "Rung of the degradation ladder.")
        self._wanted = gauge("replicas", "Replicas for all of the model's traffic, before bounds.", "version")
        self._short = gauge("shortfall_replicas", "Replicas that are needed and not allowed.", "version")
        self.seconds = Gauge("tidewheel_forecast_cycle_seconds", "Duration of the last cycle.", registry=registry)
        self.errors = Counter("tidewheel_forecast_errors", "Cycles that failed.", registry=registry)

    def show(self, key: ModelKey, advice: ModelAdvice) -> None:
        """The numbers of one model."""
        for entry in advice.outlook.units:
            labels = (*key, _label(entry.unit))
            self._present.labels(*labels).set(float("nan") if entry.present is None else entry.present)
            self._ahead.labels(*labels).set(entry.forecast)
            self._need.labels(*labels).set(entry.need)
            self._margin.labels(*labels).set(entry.margin.factor)
        self._lead.labels(*key).set(advice.outlook.lead_seconds)
        self._blind.labels(*key).set(advice.outlook.blind_seconds)
        self._rung.labels(*key).set(advice.rung)
        for version, found in advice.versions.items():
            self._wanted.labels(*key, version).set(found.load.wanted(10_000))
            self._short.labels(*key, version).set(found.load.shortfall(10_000))

    def forget(self, key: ModelKey) -> None:
        """The model is gone, or is not scaled any more."""
        gauges = (self._present, self._ahead, self._need, self._margin, self._lead, self._blind, self._rung)
        for gauge in (*gauges, self._wanted, self._short):
            gauge.remove_by_labels(dict(zip(_MODEL, key, strict=True)))


def _label(unit: Unit) -> str:
    return unit.name.lower()

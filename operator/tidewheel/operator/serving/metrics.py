"""Prometheus metrics of the operator."""

import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tidewheel.operator.rollouts.tallies import JudgeTallies
from tidewheel.operator.scaling.metrics import ScalingMetrics

_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """One registry per process; ``gauge_from`` lets a gauge be read when it is scraped."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._refreshers: list[Callable[[], object]] = []
        self.reconciles = Counter(
            "tidewheel_reconcile", "Reconciles of a model, by result.", ["result"], registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            "tidewheel_reconcile_seconds", "Duration of a reconcile.", buckets=_BUCKETS, registry=self.registry
        )
        self.actions = Counter(
            "tidewheel_reconcile_actions",
            "Writes that the plan asked for, by kind.",
            ["action"],
            registry=self.registry,
        )
        self.api_calls = Counter(
            "tidewheel_api_calls",
            "Calls to the API server, by verb, resource and status code (0: no answer).",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self.watch_restarts = Counter(
            "tidewheel_operator_restarts",
            "Runs of kopf that ended, by error.",
            ["reason"],
            registry=self.registry,
        )
        self.missed = Counter(
            "tidewheel_watch_missed_deletions",
            "Deletions that only our own list noticed.",
            ["resource"],
            registry=self.registry,
        )
        self.rollouts = JudgeTallies(self.registry, now=time.time)
        self.scaling = ScalingMetrics(self.registry)
        self.watch_age = Gauge(
            "tidewheel_watch_last_event_seconds",
            "Seconds since a watch of this resource was opened or has spoken.",
            ["resource"],
            registry=self.registry,
        )

    def gauge_from(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """A gauge whose value is read at each scrape."""
        Gauge(name, documentation, registry=self.registry).set_function(read)

    def on_scrape(self, refresh: Callable[[], object]) -> None:
        """Call this before each scrape."""
        self._refreshers.append(refresh)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        for refresh in self._refreshers:
            refresh()
        return generate_latest(self.registry)

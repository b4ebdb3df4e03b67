"""The metrics contract (DESIGN section 9), as far as its series exist today.

Labels: namespace, model, version; ``cohort`` on request, error and latency series is ``canary``, ``control``, ``rest``
or ``pinned`` (see ``cohorts``). Requests that never reached a version carry empty labels, so that
clients cannot make series. Every version that routing knows has its series at 0, and loses them when it is gone.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidewheel.gateway.cohorts import REST
from tidewheel.gateway.snapshot import Snapshot, VersionKey

UNROUTED: Final = VersionKey("", "", "")
TIERS: Final = ("paid", "free", "background")
LANES: Final = TIERS
OUTCOMES: Final = ("completed", "failed", "cancelled", "shed")
CODE_CLASSES: Final = ("2xx", "4xx", "5xx")
REASONS: Final = (
    "no_ready_replica",
    "unreachable",
    "upstream_reset",
    "upstream_timeout",
    "upstream_error",
    "upstream_overloaded",
    "invalid_reply",
    "stream_broken",
    "internal_error",
)
RESUME_CAUSES: Final = ("replica", "gateway", "client")
_VERSION_LABELS: Final = ("namespace", "model", "version")
_EDGE_FACTOR: Final = 1.2 ** (1 / 3)


def _edges(lowest: float, highest: float) -> tuple[float, ...]:
    """Edges a constant factor 1.2^(1/3) apart: a ratio of 1.2 between two versions is three buckets, anywhere."""
    edges = itertools.takewhile(
        lambda edge: edge < highest, (lowest * _EDGE_FACTOR**step for step in itertools.count())
    )
    return (*(float(f"{edge:.6g}") for edge in edges), highest)


TTFT_EDGES: Final = _edges(0.001, 120.0)
TPOT_EDGES: Final = _edges(0.0005, 5.0)
WAIT_EDGES: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)
ACK_EDGES: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
TOKEN_EDGES: Final = tuple(float(2**power) for power in range(21))


class LatencySeries:
    """The series of one version that tell cohorts apart."""

    def __init__(self, metrics: "Metrics", key: VersionKey, *, cohort: str) -> None:
        bound = (*key, cohort)
        self.requests = {
            (code, tier): metrics.requests.labels(*bound, code, tier) for code in CODE_CLASSES for tier in TIERS
        }
        self.errors = {reason: metrics.errors.labels(*bound, reason) for reason in REASONS}
        self.over_slo = {metric: metrics.over_slo.labels(*bound, metric) for metric in ("ttft", "tpot")}
        self.ttft: Histogram = metrics.ttft.labels(*bound)
        self.tpot: Histogram = metrics.tpot.labels(*bound)


class Series:
    """The series of one version; bound once, so that a request looks nothing up."""

    def __init__(self, metrics: "Metrics", key: VersionKey) -> None:
        self._metrics = metrics
        self._key = key
        self.in_flight: Gauge = metrics.in_flight.labels(*key)
        self.streams_open: Gauge = metrics.streams_open.labels(*key)
        self.stalls: Counter = metrics.stalls.labels(*key)
        self.prompt_tokens: Histogram = metrics.prompt_tokens.labels(*key)
        self.output_tokens: Histogram = metrics.output_tokens.labels(*key)
        self.offered = {
            (kind, outcome): metrics.offered.labels(*key, kind, outcome)
            for kind in ("prompt", "output")
            for outcome in OUTCOMES
        }
        self.cached_prompt_tokens: Counter = metrics.cached_prompt_tokens.labels(*key)
        self.queue_depth: dict[str, Gauge] = {lane: metrics.queue_depth.labels(*key, lane) for lane in LANES}
        self.queue_wait: dict[str, Histogram] = {lane: metrics.queue_wait.labels(*key, lane) for lane in LANES}
        self.lost: Counter = metrics.lost.labels(*key)
        self.resumed = {cause: metrics.resumed.labels(*key, cause) for cause in RESUME_CAUSES}
        self._cohorts = {REST: LatencySeries(metrics, key, cohort=REST)}
        self.open_requests = 0

    def cohort(self, name: str) -> LatencySeries:
        """The series of a cohort; but for ``rest`` they come with their first request, for few versions have one."""
        if name not in self._cohorts:
            self._cohorts[name] = LatencySeries(self._metrics, self._key, cohort=name)
        return self._cohorts[name]

    @contextmanager
    def one_in_flight(self, *, stream: bool) -> Iterator[None]:
        """Count one request while the block runs."""
        gauges = [self.in_flight, self.streams_open] if stream else [self.in_flight]
        self.open_requests += 1
        for gauge in gauges:
            gauge.inc()
        try:
            yield
        finally:
            self.open_requests -= 1
            for gauge in gauges:
                gauge.dec()


class StoreMetrics:
    """Of the store of replies, which belongs to no version."""

    def __init__(self, registry: CollectorRegistry) -> None:
        away = "1 while the store of replies is configured and does not answer; alert."
        self.away = Gauge("tidewheel_reply_store_away", away, registry=registry)
        self.not_resumable = Counter(
            "tidewheel_replies_not_resumable", "Replies that should have been resumable and are not.", registry=registry
        )
        ack = "Time until the store of replies has answered."
        self.ack = Histogram("tidewheel_reply_store_ack_seconds", ack, buckets=ACK_EDGES, registry=registry)


class RegionMetrics:
    """Of the gateways of other regions, which belong to no version."""

    def __init__(self, registry: CollectorRegistry) -> None:
        spilled = "Requests that a peer of another region served, because they would have waited longer here."
        up = "1 while a peer tells its queues; requests go to no other. Alert on 0."
        self.up = Gauge("tidewheel_peer_up", up, ["region"], registry=registry)
        self.spilled = Counter("tidewheel_requests_spilled", spilled, ["region"], registry=registry)


class Metrics:
    """One registry per process; a parent adds up its workers' (see ``aggregation``)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._series: dict[VersionKey, Series] = {}
        count, gauge, spread = self._counter, self._gauge, self._histogram
        self.requests = count("requests", "Finished requests.", "cohort", "code_class", "tier")
        self.errors = count("request_errors", "Requests that failed by the version's fault.", "cohort", "reason")
        self.over_slo = count("over_slo", "Requests over the version's own slo.", "cohort", "metric")
        self.offered = count("offered_tokens", "Tokens of requests, estimated where not known.", "kind", "outcome")
        self.cached_prompt_tokens = count("cached_prompt_tokens", "Prompt tokens that engines had cached.")
        self.stalls = count("stream_stalls", "Pauses inside streams (over 2 s).")
        self.lost = count("streams_lost", "Streams that broke and could not be carried on.")
        self.resumed = count("streams_resumed", "Streams carried on: after a replica, a gateway or a client.", "cause")
        self.store = StoreMetrics(self.registry)
        self.regions = RegionMetrics(self.registry)
        self.streams_open = gauge("streams_open", "Streams open now.")
        self.in_flight = gauge("in_flight", "Requests open now.")
        self.queue_depth = gauge("queue_depth", "Requests that wait in a lane now.", "lane")
        self.queue_wait = spread(
            "queue_wait_seconds", "From arrival to the turn, for requests that got it.", "lane", edges=WAIT_EDGES
        )
        self.ttft = spread(
            "ttft_seconds", "From a complete request to the first token; streams.", "cohort", edges=TTFT_EDGES
        )
        self.tpot = spread("tpot_seconds", "Mean time per token after the first; streams.", "cohort", edges=TPOT_EDGES)
        self.prompt_tokens = spread("prompt_tokens", "Tokens of prompts, where known.", edges=TOKEN_EDGES)
        self.output_tokens = spread("output_tokens", "Tokens of replies.", edges=TOKEN_EDGES)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tidewheel_{name}", text, (*_VERSION_LABELS, *labels), registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tidewheel_{name}", text, (*_VERSION_LABELS, *labels), registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str, edges: tuple[float, ...]) -> Histogram:
        return Histogram(f"tidewheel_{name}", text, (*_VERSION_LABELS, *labels), buckets=edges, registry=self.registry)

    def of(self, key: VersionKey) -> Series:
        """The series of a version, made at 0 if new."""
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(self, key)
        return series

    def follow(self, snapshot: Snapshot) -> None:
        """Versions that came have their series at 0; versions that went lose them once nothing is open on them."""
        known = snapshot.versions()
        for key in known:
            self.of(key)
        for key in [key for key, series in self._series.items() if key not in known and not series.open_requests]:
            del self._series[key]
            self._remove(key)

    def count_unrouted(self, code_class: str, tier: str) -> None:
        """A request that no version can be held to: bad, or for a model that is not here."""
        self.requests.labels(*UNROUTED, REST, code_class, tier).inc()

    def _remove(self, key: VersionKey) -> None:
        for metric in self._families():
            metric.remove_by_labels(dict(zip(_VERSION_LABELS, key, strict=True)))

    def _families(self) -> Iterable[MetricWrapperBase]:
        return (item for item in vars(self).values() if isinstance(item, MetricWrapperBase))


class RoutingCollector(Collector):
    """Computed when scraped: the generation obeyed per model, and how old what routing knows is."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot | None],
        *,
        age_seconds: Callable[[], float],
        regressions: Callable[[], int],
    ) -> None:
        self._snapshot = snapshot
        self._age_seconds = age_seconds
        self._regressions = regressions

    def collect(self) -> Iterator[Metric]:
        """The families of this moment."""
        generation = GaugeMetricFamily(
            "tidewheel_routing_generation", "Generation of the RoutingTable obeyed.", labels=["namespace", "model"]
        )
        snapshot = self._snapshot()
        for key, table in snapshot.tables.items() if snapshot else ():
            generation.add_metric([*key], table.generation)
        yield generation
        yield GaugeMetricFamily(
            "tidewheel_discovery_age_seconds", "Age of what routing knows.", value=self._age_seconds()
        )
        yield CounterMetricFamily(
            "tidewheel_routing_generation_regressions",
            "Tables obeyed although their generation went back, as after a restore of etcd. Alert above 0.",
            value=self._regressions(),
        )

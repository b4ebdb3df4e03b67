"""Adds up the metrics of worker processes.

prometheus_client's own multi-process mode cannot remove series, and a version that is gone must lose its own; so each
worker reports its samples when the parent is scraped. A worker that died leaves its last report behind, so that
counters do not fall (a fall reads as a restart of everything); what it counted after that report is lost.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from tidewheel.gateway.metrics import UNROUTED, Metrics
from tidewheel.gateway.snapshot import VersionKey

Report = list[tuple[str, list[tuple[str, dict[str, str], float]]]]
"""Families by name, each with its samples (name, labels, value)."""

_CUMULATIVE: Final = frozenset({"counter", "histogram"})

_SampleKey = tuple[str, tuple[tuple[str, str], ...]]


def report(registry: CollectorRegistry) -> Report:
    """The samples of a process, as JSON can carry them."""
    return [
        (family.name, [(sample.name, dict(sample.labels), float(sample.value)) for sample in family.samples])
        for family in registry.collect()
    ]


class Aggregate(Collector):
    """The sum of all reports. ``versions`` are those whose series are kept from workers that are gone."""

    def __init__(self, versions: Callable[[], set[VersionKey]]) -> None:
        self._versions = versions
        self._families = {family.name: family for family in Metrics().registry.collect()}
        self._reports: dict[int, Report] = {}
        self._left_behind: dict[str, dict[_SampleKey, float]] = {}

    def take(self, worker: int, received: Any) -> None:
        """A worker's newest report; replaces its last one."""
        self._reports[worker] = received

    def retire(self, worker: int) -> None:
        """A worker is gone: its counters stay, its gauges do not."""
        for name, samples in self._reports.pop(worker, []):
            if name in self._families and self._families[name].type in _CUMULATIVE:
                _add(self._left_behind.setdefault(name, {}), samples)

    def collect(self) -> Iterator[Metric]:
        """All families, summed."""
        known = self._versions() | {UNROUTED}
        totals: dict[str, dict[_SampleKey, float]] = {}
        for name, left in self._left_behind.items():
            totals[name] = {key: value for key, value in left.items() if _version(dict(key[1])) in known}
        for received in list(self._reports.values()):
            for name, samples in received:
                _add(totals.setdefault(name, {}), samples)
        for name, family in self._families.items():
            metric = Metric(family.name, family.documentation, family.type)
            metric.samples = [Sample(key[0], dict(key[1]), value) for key, value in totals.get(name, {}).items()]
            yield metric


def _add(totals: dict[_SampleKey, float], samples: Iterable[tuple[str, dict[str, str], float]]) -> None:
    for name, labels, value in samples:
        key = (name, tuple(labels.items()))
        totals[key] = totals.get(key, 0.0) + value


def _version(labels: Mapping[str, str]) -> VersionKey:
    return VersionKey(labels.get("namespace", ""), labels.get("model", ""), labels.get("version", ""))

"""A local cluster with Tidewheel on it, for benchmarks that need one; gone at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from e2e.platform.installation import Installation

from tidewheel.cli.cluster.host_mounts import compile_kernels
from tidewheel.cli.cluster.local_cluster import LocalCluster
from tidewheel.cli.cluster.settings import ClusterSettings

CHART = Path(__file__).parents[2] / "charts/tidewheel"


@contextmanager
def installed_platform(name: str, *, scrape_seconds: float | None = None) -> Iterator[Installation]:
    """Two operators and two gateways from the chart, on a one-node cluster of that name.

    ``scrape_seconds``: a Prometheus scrapes them so often, and rollouts are judged by it; None: there is none.
    """
    compile_kernels()
    settings = ClusterSettings(name=name, prometheus=scrape_seconds is not None)
    if scrape_seconds is not None:
        settings = replace(settings, scrape_interval_seconds=scrape_seconds)
    with LocalCluster(settings) as cluster:
        installation = Installation(cluster, CHART)
        installation.install()
        if scrape_seconds is not None:
            url = cluster.status().prometheus
            installation.upgrade(f"prometheus.url={url}", f"prometheus.scrapeIntervalSeconds={scrape_seconds:g}")
        yield installation

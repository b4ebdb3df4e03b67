"""Tidewheel as the chart installs it, once per run; each test brings a model of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.conftest import SCRAPE_SECONDS
from e2e.platform.installation import Installation

from tidewheel.cli.cluster.providers import Cluster

_CHART = Path(__file__).parents[2] / "charts/tidewheel"


@pytest.fixture(scope="session")
def tidewheel(cluster: Cluster) -> Iterator[Installation]:
    """Two operators, two gateways, one serving namespace, on the cluster of this run."""
    installation = Installation(cluster, _CHART)
    installation.install()
    try:
        yield installation
    finally:
        installation.uninstall()


@pytest.fixture(scope="session")
def prometheus_url(cluster: Cluster) -> str:
    """Of the cluster's own Prometheus; a cluster of somebody else's may have none."""
    url = cluster.status().prometheus
    if url is None:
        pytest.skip("this cluster has no Prometheus")
    return url


@pytest.fixture(scope="module")
def judged(tidewheel: Installation, prometheus_url: str) -> Iterator[Installation]:
    """The release with a Prometheus to judge by."""
    tidewheel.upgrade(f"prometheus.url={prometheus_url}", f"prometheus.scrapeIntervalSeconds={SCRAPE_SECONDS:g}")
    yield tidewheel
    tidewheel.upgrade("prometheus.url=")

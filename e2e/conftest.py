"""One cluster per test run, one namespace per test.

`TIDEWHEEL_E2E_PROVIDER` chooses the kind: `local` (default; needs root), `kind`, or `existing` (`$KUBECONFIG`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from tidewheel.cli.cluster.cleanup import owned_name, remove_abandoned
from tidewheel.cli.cluster.local_cluster import LocalCluster
from tidewheel.cli.cluster.procfs import identify
from tidewheel.cli.cluster.progress import ConsoleProgress
from tidewheel.cli.cluster.providers import LOCAL, Cluster, open_cluster
from tidewheel.cli.cluster.settings import ClusterSettings

_PROVIDER = os.environ.get("TIDEWHEEL_E2E_PROVIDER", LOCAL)
_PREFIX = "e2e"
SCRAPE_SECONDS = 2.0
"""Of the cluster's Prometheus: a rollout's blocks are four scrapes long, so this is what its length comes from."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of this run's own, with two nodes, 8 simulated GPUs each, DNS and Prometheus; gone at the end.

    What runs that were killed have left is removed first. `.kubeconfig`, `.kubectl(...)`, `.helm(...)`.
    """
    remove_abandoned(_PREFIX)
    owner = identify(os.getpid())
    assert owner is not None
    settings = ClusterSettings(
        name=owned_name(_PREFIX, owner), nodes=2, prometheus=True, scrape_interval_seconds=SCRAPE_SECONDS
    )
    opened = open_cluster(settings, progress=ConsoleProgress(), provider=_PROVIDER)
    try:
        opened.up()
        yield opened
    finally:
        opened.down()


@pytest.fixture(scope="session")
def local_cluster(cluster: Cluster) -> LocalCluster:
    """The same cluster, for tests that stop components, cut nodes or break GPUs; skipped for other providers."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip(f"provider {_PROVIDER!r} has no way to inject this fault")
    return cluster


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace; its deletion is not waited for, as no other test uses it."""
    name = f"e2e-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("wait", "--for=create", "serviceaccount/default", f"--namespace={name}", "--timeout=20s")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")

"""Fixtures that tests of several packages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidewheel.cli.cluster.bare_control_plane import running_control_plane
from tidewheel.cli.cluster.control_plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real etcd and kube-apiserver, once per run: `.kubeconfig`, `.url`, `.kubectl(...)`, `.kubeconfig_for(...)`.

    Its components can be stopped and started again: `.stop("kube-apiserver", sig=SIGKILL)`, `.start_again(...)`.
    Who needs garbage collection, controllers or another set of components starts an own `running_control_plane(...)`.
    """
    with running_control_plane() as plane:
        yield plane

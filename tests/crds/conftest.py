"""The CRDs of this repository, installed on the real API server."""

from pathlib import Path

import pytest

from tidewheel.cli.cluster.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def installed(control_plane: ControlPlane) -> ControlPlane:
    """The control plane that knows our kinds."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={ROOT / 'crds'}")
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    return control_plane

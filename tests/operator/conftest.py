"""A namespace of one's own with everything that a real operator needs around it."""

import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.faults.proxy import ApiProxy
from tests.operator.kubelet import Kubelet
from tests.operator.world import NewWorld, World

from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.clients.kubernetes import NAMESPACES, Access, KubeClient, load_access
from tidewheel.clients.resources import Resource

SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
CRD_FOLDER = Path(__file__).parents[2] / "crds"


@pytest.fixture(scope="session")
def installed(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our kinds."""
    files = sorted(CRD_FOLDER.glob("*.yaml"))
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", *(f"--filename={path}" for path in files))
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    return control_plane


@pytest.fixture
def access(installed: ControlPlane) -> Access:
    """The administrator, straight to the API server."""
    return load_access(kubeconfig=installed.kubeconfig)


@contextlib.asynccontextmanager
async def made_world(access: Access, folder: Path) -> AsyncIterator[World]:
    """See world.py. Without a controller-manager nothing empties the namespace afterwards."""
    namespace = f"test-{secrets.token_hex(4)}"
    folder.mkdir(exist_ok=True)
    async with KubeClient(access, user_agent="tidewheel-test") as client:
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": namespace}})
        with ApiProxy(access) as proxy, Kubelet(access, namespace) as kubelet:
            made = World(client=client, namespace=namespace, proxy=proxy, kubelet=kubelet, folder=folder)
            try:
                yield made
            finally:
                made.stop_operators()


@pytest.fixture
async def world(access: Access, tmp_path: Path) -> AsyncIterator[World]:
    """One world for the test."""
    async with made_world(access, tmp_path) as made:
        yield made


@pytest.fixture
def new_world(access: Access, tmp_path: Path) -> NewWorld:
    """As many worlds as the test asks for, each in a namespace of its own."""
    numbers = itertools.count()
    return lambda: made_world(access, tmp_path / f"world-{next(numbers)}")

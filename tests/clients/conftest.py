"""A client, and a namespace of one's own, on the real API server."""

import secrets
from collections.abc import AsyncIterator

import pytest

from tidewheel.cli.cluster.control_plane import ControlPlane
from tidewheel.clients.kubernetes import NAMESPACES, Access, KubeClient, load_access


@pytest.fixture
def access(control_plane: ControlPlane) -> Access:
    """The administrator's access."""
    return load_access(kubeconfig=control_plane.kubeconfig)


@pytest.fixture
async def client(access: Access) -> AsyncIterator[KubeClient]:
    """The administrator, straight to the API server."""
    async with KubeClient(access, user_agent="tidewheel-test") as opened:
        yield opened


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    """A namespace of this test's own. It stays: without a controller-manager nothing empties it."""
    name = f"test-{secrets.token_hex(4)}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name

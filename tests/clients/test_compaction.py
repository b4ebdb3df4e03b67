"""An API server that died and came back with a compacted history: the past cannot be replayed."""

import json
import signal
import urllib.request
from contextlib import aclosing

import pytest
from tests.clients.configmaps import QUICK, create
from tests.clients.test_reflector import following
from tests.faults.proxy import TcpProxy
from tests.waiting import eventually

from tidewheel.cli.cluster.control_plane import API_SERVER, ControlPlane
from tidewheel.clients.errors import Gone
from tidewheel.clients.kubernetes import CONFIG_MAPS, Access, KubeClient

pytestmark = pytest.mark.component


def compact(plane: ControlPlane, revision: int) -> None:
    """Makes etcd forget what was before the revision."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{plane.endpoints.etcd_port}/v3/kv/compaction",
        data=json.dumps({"revision": str(revision), "physical": True}).encode(),
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


async def test_what_was_deleted_before_a_compaction_is_noticed(
    control_plane: ControlPlane, access: Access, client: KubeClient, namespace: str
) -> None:
    await create(client, "a", namespace, v="1")
    await create(client, "b", namespace, v="1")
    old = (await client.list(CONFIG_MAPS, namespace)).resource_version
    with TcpProxy(access.server) as proxy:
        async with (
            KubeClient(Access(proxy.url, ssl_context=access.ssl_context), settings=QUICK) as cut_off,
            following(cut_off, namespace) as copy,
        ):
            proxy.refuse()
            await client.delete(CONFIG_MAPS, "a", namespace)
            last = await create(client, "c", namespace, v="1")
            compact(control_plane, int(last["metadata"]["resourceVersion"]))
            control_plane.stop(API_SERVER, sig=signal.SIGKILL)
            control_plane.start_again(API_SERVER)
            watch = client.watch(CONFIG_MAPS, namespace=namespace, resource_version=old)
            with pytest.raises(Gone):
                async with aclosing(watch):
                    await anext(watch)
            proxy.heal()
            await eventually(lambda: copy.has(b="1", c="1"))

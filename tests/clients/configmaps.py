"""Small objects to try the client with."""

from tests.faults.proxy import ApiProxy

from tidewheel.clients.kubernetes import CONFIG_MAPS, ClientSettings, KubeClient, KubeObject

QUICK = ClientSettings(watch_seconds=3, silence_seconds=4.0, timeout_seconds=5.0, connect_timeout_seconds=1.0)
"""Durations shortened for tests; a quiet watch still gets its bookmark a second after it began."""


def config_map(name: str, namespace: str, **data: str) -> KubeObject:
    """A ConfigMap with the data given."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"test": "yes"}},
        "data": data,
    }


async def create(client: KubeClient, name: str, namespace: str, **data: str) -> KubeObject:
    """Creates one."""
    return await client.create(CONFIG_MAPS, config_map(name, namespace, **data))


def through(proxy: ApiProxy, settings: ClientSettings = QUICK) -> KubeClient:
    """A client that is subject to the proxy's faults."""
    return KubeClient(proxy.access, user_agent="tidewheel-test", settings=settings)

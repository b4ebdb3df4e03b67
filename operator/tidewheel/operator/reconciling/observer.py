"""A live picture of one model: quorum reads, before anything that cannot be taken back."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from tidewheel.clients.errors import NotFound
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.resources import (
    MODEL_VERSIONS,
    NAMESPACES,
    PODS,
    ROUTING_RULES,
    ROUTING_TABLES,
    SERVICES,
    Resource,
)
from tidewheel.crds.names import MODEL_LABEL, UID_LABEL, model_version_name
from tidewheel.operator.parsing import PARSERS
from tidewheel.operator.planning.records import AnyRecord, LoadReading, ModelKey, Picture
from tidewheel.operator.watching.cache import Cache


class Observer:
    """Reads a model from the API server into the cache, and returns its picture."""

    def __init__(self, client: KubeClient, cache: Cache) -> None:
        self._client = client
        self._cache = cache

    async def observe(self, key: ModelKey, *, now: datetime, loads: Mapping[str, LoadReading]) -> Picture:
        """The model as it is now, whatever the watch has seen so far. Raises ApiError."""
        terminating, *_ = await asyncio.gather(
            self._is_terminating(key.namespace),
            self._list_children(PODS, key),
            self._list_children(SERVICES, key),
            self._read(ROUTING_RULES, key.namespace, key.model),
            self._read(ROUTING_TABLES, key.namespace, key.model),
        )
        picture = self._cache.picture(key, now=now, loads=loads)
        await asyncio.gather(
            *(
                self._read(MODEL_VERSIONS, key.namespace, model_version_name(key.model, version))
                for version in sorted(_versions(picture))
            )
        )
        return replace(self._cache.picture(key, now=now, loads=loads), namespace_terminating=terminating)

    async def _is_terminating(self, namespace: str) -> bool:
        try:
            found = await self._client.get(NAMESPACES, namespace)
        except NotFound:
            return True
        return found["metadata"].get("deletionTimestamp") is not None

    async def _read(self, resource: Resource, namespace: str, name: str) -> None:
        try:
            found = await self._client.get(resource, name, namespace)
        except NotFound:
            self._cache.remove(resource, namespace, name)
        else:
            self._cache.observe(resource, PARSERS[resource](found))

    async def _list_children(self, resource: Resource, key: ModelKey) -> None:
        found = await self._client.list(
            resource, key.namespace, label_selector=f"{UID_LABEL},{MODEL_LABEL}={key.model}"
        )
        records: list[AnyRecord] = [PARSERS[resource](item) for item in found.items]
        self._cache.replace_of_model(resource, key, records)


def _versions(picture: Picture) -> set[str]:
    """Every version that anything speaks of."""
    named = set(picture.versions) | set(picture.services) | {pod.version for pod in picture.pods}
    if picture.rule is not None and picture.rule.spec is not None:
        named |= {target.version for target in picture.rule.spec.traffic}
    if picture.table is not None and picture.table.spec is not None:
        named |= {target.version for target in picture.table.spec.targets}
    return named - {""}

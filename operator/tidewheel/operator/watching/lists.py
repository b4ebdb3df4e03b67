"""Our own lists: what a watch has missed is corrected, first of all deletions, which no watch reports twice."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from tidewheel.clients.errors import ApiError
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.resources import PODS, SERVICES, Resource
from tidewheel.crds.names import UID_LABEL
from tidewheel.operator.parsing import PARSERS
from tidewheel.operator.watching.cache import WATCHED, Cache

_LOG: Final = logging.getLogger(__name__)


class Lister:
    """Lists every kind at the start, then by and by, and soon after kopf had to list."""

    def __init__(
        self,
        client: KubeClient,
        cache: Cache,
        *,
        namespaces: tuple[str, ...],
        interval_seconds: float,
        on_missed: Callable[[Resource, int], None] = lambda resource, missed: None,
    ) -> None:
        self._client = client
        self._cache = cache
        self._namespaces = namespaces
        self._interval_seconds = interval_seconds
        self._on_missed = on_missed
        self._soon: set[Resource] = set()
        self._wake = asyncio.Event()
        self.synced = False
        """The first full list is in the cache: absence may be believed."""

    def soon(self, resource: Resource) -> None:
        """List this kind within a second or two."""
        self._soon.add(resource)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. A list that fails is tried again; what is known stays."""
        self._soon.update(WATCHED)
        while True:
            for resource in WATCHED:
                if resource in self._soon:
                    await self._list_if_possible(resource)
            self.synced = self.synced or not self._soon
            await self._pause()

    async def _list_if_possible(self, resource: Resource) -> None:
        self._soon.discard(resource)
        try:
            await self._list(resource)
        except ApiError as error:
            _LOG.warning("list of %s failed: %s", resource.plural, error)
            self._soon.add(resource)

    async def _list(self, resource: Resource) -> None:
        selector = UID_LABEL if resource in (PODS, SERVICES) else None
        parse = PARSERS[resource]
        for namespace in self._namespaces or (None,):
            found = await self._client.list(resource, namespace, label_selector=selector)
            records = [parse(item) for item in found.items]
            missed = self._cache.replace(resource, namespace, records, found.resource_version)
            if missed and self.synced:
                _LOG.warning("the watch of %s had missed %d deletion(s)", resource.plural, missed)
                self._on_missed(resource, missed)

    async def _pause(self) -> None:
        """Wait for the next round; a request in between is served after a second, a failure after a few."""
        if self._soon:
            await asyncio.sleep(random.uniform(1.0, 3.0))
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(self._interval_seconds * random.uniform(0.8, 1.2)):
                await self._wake.wait()
            await asyncio.sleep(1.0)
        except TimeoutError:
            self._soon.update(WATCHED)

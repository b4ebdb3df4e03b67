"""A local copy of a collection that cannot stay wrong.

A watch loses things: it may go silent behind a load balancer (kopf#957), it says nothing about an object deleted while
it was away (production-stack#1091), and its version may be compacted. So: list, watch from that version, and after any
gap list again and drop what is no longer there; list again from time to time even without a gap.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tidewheel.clients.errors import ClientsError, Gone
from tidewheel.clients.kubernetes import KubeClient, KubeObject, Resource, WatchEvent

_LOG: Final = logging.getLogger(__name__)

ObjectKey = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""

OnChange = Callable[[KubeObject | None, KubeObject | None], None]
"""Called with the object before and after: (None, new), (old, new) or (old, None); never while one is awaited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorSettings:
    """Every duration in seconds. The longest back-off bounds how late changes are seen after an outage."""

    relist_seconds: float = 300.0
    shortest_watch_seconds: float = 0.5
    backoff_first_seconds: float = 0.1
    backoff_longest_seconds: float = 2.0


class Reflector:
    """Keeps ``objects`` equal to a collection on the API server and reports every difference to ``on_change``.

    ``run`` never returns and never raises for what the API server does: while it is away, the last known objects stay.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        on_change: OnChange,
        namespace: str | None = None,
        label_selector: str | None = None,
        settings: ReflectorSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resource = resource
        self._client = client
        self._on_change = on_change
        self._namespace = namespace
        self._label_selector = label_selector
        self._settings = settings or ReflectorSettings()
        self._clock = clock
        self._objects: dict[ObjectKey, KubeObject] = {}
        self._version: str | None = None  # of the last list, event or bookmark; None asks for a list
        self._listed_at = float("-inf")
        self._heard_at = clock()
        self._synced = asyncio.Event()
        self._list_wanted = asyncio.Event()
        self.lists = 0
        self.last_error: str | None = None

    @property
    def synced(self) -> bool:
        """Whether the whole collection has been seen once."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Returns once the whole collection has been seen."""
        await self._synced.wait()

    @property
    def age_seconds(self) -> float:
        """Seconds since the API server last said anything about this collection; at rest, below ``watch_seconds``."""
        return self._clock() - self._heard_at

    @property
    def objects(self) -> Mapping[ObjectKey, KubeObject]:
        """What is known now, without managedFields."""
        return MappingProxyType(self._objects)

    def get(self, name: str, namespace: str = "") -> KubeObject | None:
        """The object as last seen."""
        return self._objects.get((namespace, name))

    def request_list(self) -> None:
        """Lists again as soon as possible, for who doubts what it sees."""
        self._list_wanted.set()

    async def run(self) -> None:
        """Follows the collection until cancelled."""
        failures = 0
        while True:
            try:
                await self._follow()
                failures = 0
                self.last_error = None
            except Gone as error:
                # Compacted, or an API server that started again: nothing is wrong, but deletions may have been missed.
                self._forget_version(error)
                failures += 1
            except ClientsError as error:
                self._forget_version(error)
                failures += 1
                _LOG.warning("%s cannot be followed: %s", self.resource.plural, error)
            except Exception as error:
                # A copy that silently stops being one is worse than any bug: say it, and go on.
                self._forget_version(error)
                failures += 1
                _LOG.exception("following %s failed", self.resource.plural)
            if failures:
                longest = min(
                    self._settings.backoff_longest_seconds, self._settings.backoff_first_seconds * 2 ** (failures - 1)
                )
                await asyncio.sleep(random.uniform(0.5, 1.0) * longest)

    async def _follow(self) -> None:
        """One list where one is due, and one watch."""
        due = self._clock() - self._listed_at >= self._settings.relist_seconds
        if self._version is None or due or self._list_wanted.is_set():
            await self._list()
        watching = asyncio.ensure_future(self._watch())
        wanted = asyncio.ensure_future(self._list_wanted.wait())
        try:
            await asyncio.wait({watching, wanted}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            wanted.cancel()
            await asyncio.gather(watching, wanted, return_exceptions=True)

    async def _list(self) -> None:
        self._list_wanted.clear()
        listed = await self._client.list(self.resource, self._namespace, label_selector=self._label_selector)
        self._heard_at = self._listed_at = self._clock()
        self._version = listed.resource_version
        self.lists += 1
        self._replace_all(listed.items)
        self._synced.set()

    def _replace_all(self, items: Iterable[KubeObject]) -> None:
        seen = {_key(item): item for item in items}
        for key in [key for key in self._objects if key not in seen]:
            self._set(key, None)
        for key, item in seen.items():
            self._set(key, item)

    async def _watch(self) -> None:
        assert self._version is not None
        events = self._client.watch(
            self.resource,
            namespace=self._namespace,
            resource_version=self._version,
            label_selector=self._label_selector,
        )
        began = self._clock()
        async with aclosing(events):
            async for event in events:
                self._heard_at = self._clock()
                self.last_error = None
                self._take(event)
        self._heard_at = self._clock()
        # A server that ends every watch at once must not be asked without a pause.
        await asyncio.sleep(max(0.0, began + self._settings.shortest_watch_seconds - self._heard_at))

    def _take(self, event: WatchEvent) -> None:
        if event.type != "BOOKMARK":
            self._set(_key(event.object), None if event.type == "DELETED" else event.object)
        self._version = event.object["metadata"]["resourceVersion"]

    def _set(self, key: ObjectKey, new: KubeObject | None) -> None:
        old = self._objects.get(key)
        if new is None:
            if self._objects.pop(key, None) is not None:
                self._report(old, None)
            return
        new["metadata"].pop("managedFields", None)  # most of an object's memory, and of no use here
        self._objects[key] = new
        if old is not None and old["metadata"]["uid"] != new["metadata"]["uid"]:
            # Deleted and created again while nobody watched: two objects, not one that changed.
            self._report(old, None)
            old = None
        if old is None or old["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"]:
            self._report(old, new)

    def _report(self, old: KubeObject | None, new: KubeObject | None) -> None:
        try:
            self._on_change(old, new)
        except Exception:
            # One object that its reader cannot bear must not blind it to all others.
            _LOG.exception("a change of %s was not taken in", self.resource.plural)

    def _forget_version(self, error: Exception) -> None:
        self._version = None
        self.last_error = str(error)


def _key(item: KubeObject) -> ObjectKey:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]

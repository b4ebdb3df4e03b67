"""Follows RoutingTables and EndpointSlices on the API server and publishes a snapshot after every change.

Zero calls per request: what is published is all that serving uses. While the API server is away the last snapshot
stays; a process that starts in that time begins with what an earlier one wrote to disk.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from tidewheel.clients.errors import ClientsError, NotFound
from tidewheel.clients.kubernetes import (
    ENDPOINT_SLICES,
    ROUTING_TABLES,
    ClientSettings,
    KubeClient,
    KubeObject,
    load_access,
)
from tidewheel.clients.reflector import Reflector, ReflectorSettings
from tidewheel.crds.names import MODEL_LABEL
from tidewheel.gateway.catalog import Catalog, Verdict
from tidewheel.gateway.lastgood import LastGood
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.snapshot import ModelKey, Snapshot, SnapshotError, parse_time

_log = logging.getLogger(__name__)

_WATCH_SHARE_OF_SILENCE = 0.8  # a quiet watch says a last word before its end, and so before silence is taken for death


class Discovery:
    """``publish`` gets every new snapshot, on the event loop; ``last_good`` keeps them across starts."""

    def __init__(
        self, settings: Settings, *, publish: Callable[[Snapshot], None], last_good: LastGood | None = None
    ) -> None:
        self._settings = settings
        self._publish = publish
        self._last_good = last_good
        self._catalog = Catalog()
        self._client = KubeClient(
            load_access(kubeconfig=settings.kubeconfig),
            user_agent="tidewheel-gateway",
            settings=ClientSettings(
                silence_seconds=settings.watch_silence,
                watch_seconds=max(1, int(settings.watch_silence * _WATCH_SHARE_OF_SILENCE)),
            ),
        )
        self._tables = {name: self._reflector(name, tables=True) for name in settings.namespaces}
        self._slices = {name: self._reflector(name, tables=False) for name in settings.namespaces}
        self._group: asyncio.TaskGroup | None = None
        self._doubts: set[ModelKey] = set()
        self._due: asyncio.TimerHandle | None = None
        self._serving = False
        self._stale_since: datetime | None = None

    @property
    def age_seconds(self) -> float:
        """How long ago the API server last spoke about the collection it has been silent on longest.

        While routing comes from the disk: how long ago it was written.
        """
        if self._stale_since is not None:
            return max(0.0, (datetime.now(UTC) - self._stale_since).total_seconds())
        return max(reflector.age_seconds for reflector in self._reflectors())

    @property
    def regressions(self) -> int:
        """Tables obeyed although their generation went back."""
        return self._catalog.regressions

    async def run(self) -> None:
        """Runs until cancelled."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._client)
            group = self._group = await stack.enter_async_context(asyncio.TaskGroup())
            if self._last_good is not None:
                group.create_task(self._last_good.run())
            for reflector in self._reflectors():
                group.create_task(reflector.run())
            for namespace in self._settings.namespaces:
                group.create_task(self._confirm_namespace(namespace))
            await self._begin()

    async def _begin(self) -> None:
        """Wait for the first lists; when they do not come in time, begin with what the disk has."""
        synced = [asyncio.ensure_future(reflector.wait_synced()) for reflector in self._reflectors()]
        try:
            _, missing = await asyncio.wait(synced, timeout=self._settings.first_list_timeout)
            if missing:
                self._recall()
                await asyncio.wait(missing)
        finally:
            for future in synced:
                future.cancel()
        self._stale_since = None
        self._serving = True
        self._catalog.all_listed()
        self._changed()

    def _recall(self) -> None:
        saved = self._last_good.load() if self._last_good is not None else None
        if saved is None:
            _log.warning("the API server does not answer and no last known good routing is on disk; not ready")
            return
        _log.warning("the API server does not answer; serving by the routing of %s from disk", saved.saved_at)
        self._catalog.remember(saved.snapshot, saved_at=saved.saved_at)
        self._stale_since = parse_time(saved.saved_at)
        self._serving = True
        self._changed()

    async def _confirm_namespace(self, namespace: str) -> None:
        """After the first list of a kind, what only the disk knows of it is gone."""
        await self._tables[namespace].wait_synced()
        self._catalog.tables_listed(namespace)
        self._changed()
        await self._slices[namespace].wait_synced()
        self._catalog.slices_listed(namespace)
        self._changed()

    def _reflectors(self) -> Iterator[Reflector]:
        yield from self._tables.values()
        yield from self._slices.values()

    def _reflector(self, namespace: str, *, tables: bool) -> Reflector:
        settings = self._settings
        return Reflector(
            self._client,
            ROUTING_TABLES if tables else ENDPOINT_SLICES,
            on_change=self._on_table if tables else self._on_slice,
            namespace=namespace,
            label_selector=None if tables else MODEL_LABEL,
            settings=ReflectorSettings(
                relist_seconds=settings.relist_seconds, backoff_longest_seconds=settings.api_retry_seconds
            ),
        )

    def _on_table(self, old: KubeObject | None, new: KubeObject | None) -> None:
        if new is not None:
            self._put_table(new)
        elif old is not None:
            self._catalog.drop_table(ModelKey(old["metadata"]["namespace"], old["metadata"]["name"]))
            self._changed()

    def _put_table(self, body: KubeObject, *, confirmed: bool = False) -> None:
        key = ModelKey(body["metadata"]["namespace"], body["metadata"]["name"])
        try:
            observed_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            verdict = self._catalog.put_table(body, observed_at=observed_at, confirmed=confirmed)
        except SnapshotError as error:
            _log.error("a table was not taken over; the last good one stays in force: %s", error)
            return
        if verdict is Verdict.LOWER and key not in self._doubts and self._group is not None:
            self._doubts.add(key)
            self._group.create_task(self._resolve_doubt(key)).add_done_callback(lambda _: self._doubts.discard(key))
        self._changed()

    async def _resolve_doubt(self, key: ModelKey) -> None:
        """A lower generation was seen: ask for the object itself, a read that no cache may answer."""
        _log.warning("RoutingTable %s was seen at a lower generation; reading it again", key)
        while True:
            try:
                body = await self._client.get(ROUTING_TABLES, key.model, key.namespace)
            except NotFound:
                return  # its deletion comes by the watch
            except ClientsError:
                await asyncio.sleep(self._settings.api_retry_seconds)
                continue
            held, generation = self._catalog.generation(key), body["metadata"]["generation"]
            if held is not None and held[0] == body["metadata"]["uid"] and generation < held[1]:
                _log.error("RoutingTable %s went back from generation %d to %d; obeying it", key, held[1], generation)
            self._put_table(body, confirmed=True)
            return

    def _on_slice(self, old: KubeObject | None, new: KubeObject | None) -> None:
        if new is not None:
            self._catalog.put_slice(new)
        elif old is not None:
            self._catalog.drop_slice((old["metadata"]["namespace"], old["metadata"]["name"]))
        self._changed()

    def _changed(self) -> None:
        if self._serving and self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(self._settings.coalesce_seconds, self._publish_now)

    def _publish_now(self) -> None:
        self._due = None
        snapshot = self._catalog.snapshot()
        self._publish(snapshot)
        if self._last_good is not None and snapshot.stale_since is None:
            self._last_good.keep(snapshot)

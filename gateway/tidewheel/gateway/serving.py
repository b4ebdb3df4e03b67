"""The serving part of one process: data port, replicas, metrics. A snapshot is all it needs from outside."""

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from prometheus_client import generate_latest

from tidewheel.gateway.admission.desk import Desk
from tidewheel.gateway.admission.keyfile import identify_by
from tidewheel.gateway.admission.quota import LocalBuckets, Quota
from tidewheel.gateway.admission.shared_quota import SharedBuckets
from tidewheel.gateway.api import DataApi
from tidewheel.gateway.metrics import Metrics
from tidewheel.gateway.peers.region import regions_of
from tidewheel.gateway.placement.placing import Placement
from tidewheel.gateway.placement.reports import LoadReports
from tidewheel.gateway.replicas import Fleet, RetryBudget
from tidewheel.gateway.replies.book import ReplyBook
from tidewheel.gateway.replies.pacing import Pacer
from tidewheel.gateway.replies.reply import Reply
from tidewheel.gateway.replies.stores.records import ReplyRecord
from tidewheel.gateway.replies.stores.redis_store import RedisStore
from tidewheel.gateway.replies.stores.sealing import seals_from
from tidewheel.gateway.replies.stores.sharing import Sharing
from tidewheel.gateway.routing import Router
from tidewheel.gateway.server import App, ClientConnection
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.snapshot import Snapshot
from tidewheel.gateway.tracing import tracing_of
from tidewheel.gateway.turns import Turns
from tidewheel.gateway.upstream import Pool
from tidewheel.gateway.work import Surroundings

_log = logging.getLogger(__name__)

_BACKLOG = 1024
_LINGER_SECONDS = 2.5


class HttpServer:
    """A listening socket and its connections."""

    def __init__(self, app: App, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, sock: socket.socket) -> None:
        """Take connections from now on."""
        loop = asyncio.get_running_loop()

        def make() -> ClientConnection:
            return ClientConnection(self._app, self._settings, connections=self._connections)

        with contextlib.suppress(OSError):  # no TCP
            # Each connection inherits it. Else the kernel takes 4 MB for a client that reads nothing, before we notice.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._settings.write_buffer_bytes)
        self._server = await loop.create_server(make, sock=sock, backlog=_BACKLOG)

    def stop_listening(self) -> None:
        """Take no new connection; open ones go on, idle ones are closed."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close_if_idle()

    async def close(self) -> None:
        """Give answers on their way a moment, then cut what is left."""
        self.stop_listening()
        deadline = asyncio.get_running_loop().time() + _LINGER_SECONDS
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for connection in list(self._connections):
            connection.abort()


def shared_store(settings: Settings) -> RedisStore | None:
    """The store that the settings name; None without one. Raises OSError for a bad file."""
    url = settings.redis_url or (settings.redis_url_file.read_text().strip() if settings.redis_url_file else "")
    return RedisStore(url, timeout=settings.store_timeout, window=settings.log_window) if url else None


def quota_of(settings: Settings, store: RedisStore | None) -> Quota:
    """Leased from the shared store, so that all gateways and workers keep one limit; without one, of this process."""
    if store is None:
        return Quota(LocalBuckets(time.monotonic), clock=time.monotonic)
    return Quota(
        SharedBuckets(store.run, timeout=settings.store_timeout),
        clock=time.monotonic,
        lease_share=settings.quota_lease_share,
        lease_seconds=settings.quota_lease_seconds,
    )


def shared_replies(
    settings: Settings,
    store: RedisStore | None,
    *,
    metrics: Metrics,
    adopt: Callable[[Reply], object],
    on_taken: Callable[[Reply, ReplyRecord], object],
) -> Sharing | None:
    """By the shared store; None without one. Raises OSError or ValueError for bad files."""
    if store is None:
        return None
    seals = seals_from(settings.reply_key_file)
    return Sharing(settings, store, seals, metrics=metrics, adopt=adopt, on_taken=on_taken)


class DataPlane:
    """What serves clients in this process."""

    def __init__(self, settings: Settings, *, authorization: Callable[[], bytes | None]) -> None:
        turns = Turns()
        fleet = Fleet(
            lambda host, port: Pool(host, port, settings=settings, turns=turns),
            lambda: RetryBudget(ratio=settings.retry_ratio, burst=settings.retry_burst),
        )
        self._settings = settings
        store = shared_store(settings)
        self.metrics = Metrics()
        self.router = Router(fleet, namespace=settings.namespace)
        self.desk = Desk(
            settings,
            identify=identify_by(
                settings.key_file, poll_seconds=settings.key_poll_seconds, anonymous_tier=settings.anonymous_tier
            ),
            quota=quota_of(settings, store),
            router=self.router,
            metrics=self.metrics,
            clock=time.monotonic,
        )
        self.placement = Placement(settings, clock=time.monotonic, rng=random.Random())
        self._reports = LoadReports(
            lambda: fleet,
            authorization=authorization,
            on_report=self.desk.look,
            poll_seconds=settings.load_poll_seconds,
            timeout=settings.connect_timeout,
        )
        self._asking: asyncio.Task[None] | None = None
        self.book = ReplyBook(settings, metrics=self.metrics)
        self._shared = shared_replies(
            settings,
            store,
            metrics=self.metrics,
            adopt=self.book.adopt,
            on_taken=self._carry_on,
        )
        if self._shared is not None:
            self.book.share(self._shared)
        self._sharing: asyncio.Task[None] | None = None
        self._tracing = tracing_of(settings)
        self._regions = regions_of(settings, wall=time.time, turns=turns)
        if self._regions is not None:
            self._regions.on_heard = lambda region, heard: self.metrics.regions.up.labels(region).set(heard)
        self._hearing: asyncio.Task[None] | None = None
        self.api = DataApi(
            Surroundings(
                settings=settings,
                router=self.router,
                metrics=self.metrics,
                desk=self.desk,
                placement=self.placement,
                authorization=authorization,
                now=lambda: datetime.now(UTC),
                rng=random.Random(),
                book=self.book,
                pacer=Pacer(settings.continuations_at_once),
                shared=self._shared,
                regions=self._regions,
                tracing=self._tracing,
            )
        )
        self.server = HttpServer(self.api, settings)

    def apply(self, snapshot: Snapshot) -> None:
        """Obey a snapshot from now on."""
        self.metrics.follow(snapshot)
        self.router.apply(snapshot)
        self.desk.follow(snapshot)

    def _carry_on(self, reply: Reply, record: ReplyRecord) -> None:
        self.api.carry_on(reply, record)

    async def begin(self) -> None:
        """What goes on beside requests: returns when the first of them may come."""
        self._ask_replicas()
        if self._regions is not None:
            self._hearing = asyncio.get_running_loop().create_task(self._regions.run())
        if self._shared is not None:
            await self._shared.check()
            self._sharing = asyncio.get_running_loop().create_task(self._shared.run())

    def _ask_replicas(self) -> None:
        """Hear from replicas how loaded they are, from now on."""
        if self._settings.load_poll_seconds > 0:
            self._asking = asyncio.get_running_loop().create_task(self._reports.run())

    async def drain(self, *, accept_seconds: float) -> None:
        """Unready first, so that load balancers look away; then no new connections; then wait for open requests."""
        self.api.draining = True
        _log.info("draining", extra={"open_requests": self.api.open_requests})
        await asyncio.sleep(accept_seconds)
        self.server.stop_listening()
        deadline = asyncio.get_running_loop().time() + self._settings.drain_timeout
        while self.api.open_requests and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        self.api.cut_open_requests()
        if self._shared is not None and self._sharing is not None:
            self._sharing.cancel()
            await self._shared.leave()
        await self.server.close()
        for task in (self._asking, self._hearing):
            if task is not None:
                task.cancel()
        self.router.fleet.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)


class InProcess:
    """The whole gateway in one process."""

    def __init__(self, settings: Settings, *, authorization: Callable[[], bytes | None]) -> None:
        self._plane = DataPlane(settings, authorization=authorization)
        self.registry = self._plane.metrics.registry

    def publish(self, snapshot: Snapshot) -> None:
        """Obey it at once."""
        self._plane.apply(snapshot)

    def obeyed(self) -> Snapshot | None:
        """What was published last."""
        return self._plane.router.snapshot

    async def render(self) -> bytes:
        """The metrics, rendered in a thread: hundreds of series take longer than a stream may wait."""
        return await asyncio.to_thread(generate_latest, self.registry)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Listen on the one socket."""
        (only,) = sockets
        await self._plane.begin()
        await self._plane.server.listen(only)

    async def drain(self, *, accept_seconds: float) -> None:
        """See DataPlane."""
        await self._plane.drain(accept_seconds=accept_seconds)


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket. ``shared`` lets several sockets of this program listen on one port (SO_REUSEPORT)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def bind_all(host: str, port: int, *, count: int) -> list[socket.socket]:
    """One socket for each process. A single one shares its port with nobody, so that a second gateway is noticed."""
    first = bind(host, port, shared=count > 1)
    port = first.getsockname()[1]
    return [first, *(bind(host, port, shared=True) for _ in range(1, count))]

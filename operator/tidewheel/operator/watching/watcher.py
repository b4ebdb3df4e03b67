"""kopf as the watcher, in a thread and an event loop of its own.

kopf lists, watches and resumes; its hooks do one thing that cannot fail: hand a record to the cache. It writes nothing.
kopf's own indexes are not used: they cannot forget an object whose deletion a re-list did not report.
kopf ends as a whole on what it did not expect (an in-stream error, a watch cut in mid-line, a CRD that is gone), so a
run of it is disposable: it is started again after a pause, and our own lists make good what a run has missed. On
stopping it cancels the tasks of its loop and takes over signals: hence the thread.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import kopf

from tidewheel.clients.access import Access
from tidewheel.clients.resources import PODS, SERVICES, KubeObject, Resource
from tidewheel.crds.names import UID_LABEL
from tidewheel.operator.parsing import PARSERS
from tidewheel.operator.planning.records import AnyRecord
from tidewheel.operator.watching.cache import WATCHED

_LOG: Final = logging.getLogger(__name__)
LOGIN_PAUSE_SECONDS: Final = 5.0
RESTART_LIMIT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherSettings:
    """Where to watch, and how long a stream may be silent."""

    namespaces: tuple[str, ...]
    silence_seconds: float
    restart_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReport:
    """What the watcher tells the main loop; all are called in the watcher's thread."""

    seen: Callable[[Resource, AnyRecord, bool], None]
    """A record, and whether its object was deleted."""
    alive: Callable[[Resource], None]
    """A stream of this kind was opened, or has spoken."""
    listed: Callable[[Resource], None]
    """kopf listed this kind: deletions before the list are never reported (measured)."""
    restarted: Callable[[str], None]
    """A run of kopf ended with this error."""


class EndlessBackoffs:
    """Delays that never end: kopf gives up, and ends, when they do."""

    def __iter__(self) -> Iterator[float]:
        yield from (1.0, 2.0, 4.0, 4.0)
        while True:
            yield random.uniform(3.0, 5.0)


class Watcher:
    """Keeps kopf running from ``start`` to ``stop``. ``load`` reads the access anew for each run."""

    def __init__(self, load: Callable[[], Access], *, settings: WatcherSettings, report: WatchReport) -> None:
        self._load = load
        self._settings = settings
        self._report = report
        self._stopping = threading.Event()
        self._end_run: Callable[[], object] = lambda: None
        self._login_at = -LOGIN_PAUSE_SECONDS
        self._thread = threading.Thread(target=self._supervise, name="kopf", daemon=True)

    def start(self) -> None:
        """Start watching; returns at once."""
        self._thread.start()

    async def stop(self, timeout_seconds: float) -> None:
        """Stop watching; a run that does not end in time is left to die with the process."""
        self._stopping.set()
        self._end_run()
        await asyncio.to_thread(self._thread.join, timeout_seconds)

    def _supervise(self) -> None:
        delay = self._settings.restart_seconds
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                asyncio.run(self._run())
            except Exception as error:  # whatever ends a run of kopf, the cure is another run
                _LOG.warning("the watch ended and is started again: %r", error)
                self._report.restarted(type(error).__name__)
            else:
                self._report.restarted("Stopped")
            if time.monotonic() - began > 2 * RESTART_LIMIT_SECONDS:
                delay = self._settings.restart_seconds
            if self._stopping.wait(random.uniform(0.5, 1.0) * delay):
                return
            delay = min(RESTART_LIMIT_SECONDS, 2 * delay)

    async def _run(self) -> None:
        # Of this run's own loop: a threading.Event would hold a thread of its executor, and so the end of the run.
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._end_run = lambda: _from_outside(loop, over.set)
        if self._stopping.is_set():
            return
        namespaces = self._settings.namespaces
        await kopf.operator(
            registry=self._registry(),
            settings=self._kopf_settings(),
            clusterwide=not namespaces,
            namespaces=namespaces,
            standalone=True,
            stop_flag=over,
        )

    def _kopf_settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        silence = self._settings.silence_seconds
        # The server ends a watch, with a bookmark, before it would count as silent.
        settings.watching.server_timeout = max(1, int(silence * random.uniform(0.7, 0.8)))
        settings.watching.client_timeout = silence + 15
        settings.watching.connect_timeout = min(10.0, silence)
        settings.watching.inactivity_timeout = silence
        settings.watching.reconnect_backoff = random.uniform(1.0, 1.5)
        settings.watching.chunk_size = 500
        for resource in (PODS, SERVICES):
            settings.watching.label_selectors[(resource.group, resource.version, resource.plural)] = UID_LABEL
        settings.networking.request_timeout = 15.0
        settings.networking.connect_timeout = min(10.0, silence)
        settings.networking.error_backoffs = EndlessBackoffs()
        settings.scanning.disabled = True
        settings.posting.enabled = False
        settings.peering.standalone = True
        settings.queueing.worker_limit = None
        settings.process.ultimate_exiting_timeout = None
        return settings

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        for resource in WATCHED:
            kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)(self._hook(resource))
        kopf.on.login(registry=registry)(self._login)
        return registry

    def _hook(self, resource: Resource) -> Callable[..., Any]:
        parse = PARSERS[resource]

        async def event(event: dict[str, Any], **_: Any) -> None:
            body: KubeObject = event["object"]
            self._report.alive(resource)
            self._report.seen(resource, parse(body), event["type"] == "DELETED")

        return event

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        """At most one login per pause: refused credentials make kopf log in again without end (kopf#1158)."""
        await asyncio.sleep(max(0.0, self._login_at + LOGIN_PAUSE_SECONDS - time.monotonic()))
        self._login_at = time.monotonic()
        access = self._load()
        session = aiohttp.ClientSession(
            # Never a pooled connection: its peer may be gone without a word.
            connector=aiohttp.TCPConnector(
                ssl=access.ssl_context if access.ssl_context is not None else True, limit=0, force_close=True
            ),
            headers=[("User-Agent", "tidewheel-operator-watch"), *access.headers],
            proxy=access.proxy,
            middlewares=(self._middleware(access),),
        )
        return kopf.AiohttpSession(server=access.server, aiohttp_session=session)

    def _middleware(self, access: Access) -> aiohttp.ClientMiddlewareType:
        by_plural = {resource.plural: resource for resource in WATCHED}

        async def middleware(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            request.server_hostname = access.server_hostname
            response = await self._authorized(request, handler, access)
            if response.status == 401:
                response.release()
                access.credentials.invalidate()
                response = await self._authorized(request, handler, access)
            resource = by_plural.get(request.url.path.rsplit("/", 1)[-1])
            if resource is not None and response.status == 200:
                self._report.alive(resource)
                if "watch" not in request.url.query:
                    self._report.listed(resource)
            return response

        return middleware

    @staticmethod
    async def _authorized(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType, access: Access
    ) -> aiohttp.ClientResponse:
        """Credentials per request: projected tokens rotate hourly."""
        if token := await access.credentials.token():
            request.headers["Authorization"] = f"Bearer {token}"
        return await handler(request)


def _from_outside(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Run in another thread's loop, if that still runs."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)

"""The operator as a program: takes its turn, works while the Lease is its own, and goes when told to."""

import asyncio
import logging
import random
import re
import signal
import time
from typing import Final

from tidewheel.clients.access import load_access
from tidewheel.clients.errors import ApiError
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.transport import Call
from tidewheel.operator.access_check import missing_access
from tidewheel.operator.leading.elector import Elector
from tidewheel.operator.leading.lease import LeaseSettings
from tidewheel.operator.reconciling.executor import FIELD_MANAGER
from tidewheel.operator.serving.http import StatusServer
from tidewheel.operator.serving.metrics import Metrics
from tidewheel.operator.serving.vitals import Vitals, health_trouble
from tidewheel.operator.settings import Settings
from tidewheel.operator.term import Term, background

_LOG: Final = logging.getLogger(__name__)
ACCESS_RETRY_SECONDS: Final = 5.0
ACCESS_REPEAT_SECONDS: Final = 60.0
LOST_GRACE_SECONDS: Final = 4.0


class Operator:
    """One process. A stand-by watches nothing: it costs nothing, holds no old picture, and needs one list to lead."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._vitals = Vitals(time.monotonic)
        self._missing: list[str] | None = None
        self._term: Term | None = None
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """The exit code: 0 after SIGTERM or SIGINT, 1 when the Lease was lost and the work could not be stopped."""
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, self._stop.set)
        server = StatusServer(
            host=self._settings.host,
            port=self._settings.port,
            metrics=self._metrics,
            health=self._health,
            readiness=self._readiness,
        )
        # The Lease has a client of its own: no burst of work may hold up its renewal.
        async with server, self._client() as lease_client, self._client() as client:
            _LOG.info("serving /healthz, /readyz and /metrics", extra={"port": server.port})
            elector = self._elector(lease_client)
            self._add_gauges(elector)
            async with background(self._check_access(client), "access check"):
                return await self._take_turns(elector, client)

    async def _take_turns(self, elector: Elector, client: KubeClient) -> int:
        """Lead whenever the Lease is ours. An API server that was away long enough costs the term, not the process."""
        async with background(elector.run(), "elector") as electing:
            while await self._first(elector.acquired):
                self._term = Term(
                    self._settings, client=client, elector=elector, metrics=self._metrics, vitals=self._vitals
                )
                async with background(self._term.run(self._stop), "term") as term:
                    if await self._first(elector.lost):
                        _LOG.error("stopping all work at once: another operator may be writing")
                        term.cancel()
                        await asyncio.wait([term], timeout=LOST_GRACE_SECONDS)
                        if not term.done():
                            return 1
                        self._term = None
                        continue
                    await asyncio.wait([term])
                electing.cancel()
                await asyncio.wait([electing])
                await elector.release()
        _LOG.info("stopped")
        return 0

    async def _first(self, event: asyncio.Event) -> bool:
        """True when ``event`` came, False when we were told to stop before."""
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self._stop)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return event.is_set() and not self._stop.is_set()

    async def _check_access(self, client: KubeClient) -> None:
        """Say which verbs are missing, until none is: a role may be granted at any time."""
        while True:
            try:
                self._missing = await missing_access(
                    client,
                    serving_namespaces=self._settings.serving_namespaces,
                    own_namespace=self._settings.namespace,
                )
            except ApiError as error:
                _LOG.warning("access cannot be checked: %s", error)
                await asyncio.sleep(ACCESS_RETRY_SECONDS * random.uniform(0.8, 1.2))
                continue
            if not self._missing:
                return
            _LOG.error("this identity may not: %s; grant it the roles of the chart", "; ".join(self._missing))
            await asyncio.sleep(ACCESS_REPEAT_SECONDS)

    def _health(self) -> str:
        return health_trouble(
            self._vitals,
            watch_old_seconds=self._settings.watch_old_seconds,
            queue_age_seconds=self._term.queue.oldest_seconds() if self._term else 0.0,
            queue_stuck_seconds=self._settings.queue_stuck_seconds,
        )

    def _readiness(self) -> str:
        if self._missing is None:
            return "access is not checked yet: the API server has not answered"
        if self._missing:
            return f"this identity may not: {'; '.join(self._missing)}"
        return ""

    def _elector(self, client: KubeClient) -> Elector:
        settings = self._settings
        return Elector(
            client,
            namespace=settings.namespace,
            name=settings.lease_name,
            settings=LeaseSettings(
                identity=settings.identity,
                lease_seconds=settings.lease_seconds,
                renew_deadline_seconds=settings.renew_deadline_seconds,
                retry_seconds=settings.lease_retry_seconds,
            ),
            clock=time.monotonic,
        )

    def _client(self) -> KubeClient:
        access = load_access(kubeconfig=self._settings.kubeconfig)
        return KubeClient(access, user_agent=FIELD_MANAGER, on_answer=self._count)

    def _count(self, call: Call, status: int) -> None:
        # The Lease is renewed every few seconds, so a longer silence was an outage.
        outage_seconds = 2 * self._settings.lease_retry_seconds
        if status and self._vitals.answered() > outage_seconds and self._term is not None:
            self._term.catch_up()
        resource = re.sub(r"^/apis?/([^/]+/)??v1[^/]*/(namespaces/[^/]+/(?=.))?", "", call.path).split("/")[0]
        self._metrics.api_calls.labels(call.method, resource, str(status)).inc()

    def _add_gauges(self, elector: Elector) -> None:
        metrics = self._metrics
        metrics.gauge_from("tidewheel_operator_leader", "1 while this operator leads.", lambda: float(elector.holds()))
        metrics.gauge_from(
            "tidewheel_reconcile_queue_depth",
            "Models that wait for a worker.",
            lambda: float(len(self._term.queue)) if self._term else 0.0,
        )
        metrics.gauge_from(
            "tidewheel_reconcile_queue_oldest_seconds",
            "How long the oldest of them has waited, or has kept a worker.",
            lambda: self._term.queue.oldest_seconds() if self._term else 0.0,
        )
        metrics.on_scrape(self._refresh_watch_ages)

    def _refresh_watch_ages(self) -> None:
        for resource, age in self._vitals.watch_ages().items():
            self._metrics.watch_age.labels(resource.plural).set(age)

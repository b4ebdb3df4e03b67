"""One term of leadership: everything that reads and writes, from the Lease to its loss or to the end of the process."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
from typing import Any, Final

from tidewheel.clients.access import load_access
from tidewheel.clients.events import EventRecorder
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.prometheus import Prometheus
from tidewheel.clients.resources import Resource
from tidewheel.operator.leading.elector import Elector
from tidewheel.operator.planning.actions import Action, SaveRollout, WriteTable
from tidewheel.operator.planning.records import AnyRecord
from tidewheel.operator.planning.rollouts.settings import RolloutDefaults
from tidewheel.operator.reconciling.executor import FIELD_MANAGER, Executor
from tidewheel.operator.reconciling.loads import LoadMonitor
from tidewheel.operator.reconciling.queue import Backoff, WorkQueue
from tidewheel.operator.reconciling.reconciler import Reconciler
from tidewheel.operator.reconciling.reporter import Reporter
from tidewheel.operator.reconciling.workers import Workers
from tidewheel.operator.rollouts.desk import RolloutDesk
from tidewheel.operator.scaling.demand import DemandReader
from tidewheel.operator.scaling.engines import EngineReader
from tidewheel.operator.scaling.loop import ScalingLoop
from tidewheel.operator.scaling.past import PastReader
from tidewheel.operator.serving.metrics import Metrics
from tidewheel.operator.serving.vitals import Vitals
from tidewheel.operator.settings import Settings
from tidewheel.operator.watching.cache import WATCHED, Cache
from tidewheel.operator.watching.lists import Lister
from tidewheel.operator.watching.watcher import Watcher, WatcherSettings, WatchReport

_LOG: Final = logging.getLogger(__name__)
POLL_SECONDS: Final = 0.05


class Term:
    """Cache, watches, queue and workers of a leader. Use ``run`` once."""

    def __init__(
        self, settings: Settings, *, client: KubeClient, elector: Elector, metrics: Metrics, vitals: Vitals
    ) -> None:
        self._settings = settings
        self._elector = elector
        self._metrics = metrics
        self._vitals = vitals
        self._ended = False
        backoff = Backoff(first_seconds=settings.backoff_seconds, limit_seconds=settings.backoff_limit_seconds)
        self.queue = WorkQueue(backoff=backoff, clock=time.monotonic)
        self._cache = Cache(self.queue.add)
        self._cache.gpu_budget = settings.gpu_budget or None
        self._lister = Lister(
            client,
            self._cache,
            namespaces=settings.serving_namespaces,
            interval_seconds=settings.list_seconds,
            on_missed=lambda resource, missed: metrics.missed.labels(resource.plural).inc(missed),
        )
        self._loads = LoadMonitor(
            token_file=settings.engine_token_file,
            poll_seconds=settings.load_poll_seconds,
            timeout_seconds=settings.load_timeout_seconds,
            propagation_seconds=settings.drain_propagation_seconds,
            now=_now,
            on_change=self.queue.add,
        )
        prometheus = _prometheus(settings)
        self._rollouts = RolloutDesk(
            client,
            prometheus=prometheus,
            gateways=settings.gateways,
            judging=settings.judging,
            tallies=metrics.rollouts,
            token_file=settings.engine_token_file,
            may_write=self._may_write,
            now=_now,
            on_change=self.queue.add,
        )
        self._scaling = self._scaling_loop(client, prometheus) if prometheus is not None else None
        self._workers = Workers(
            self._reconciler(client, Reporter(EventRecorder(client, component=FIELD_MANAGER))),
            self.queue,
            metrics=metrics,
            number=settings.workers,
            resync_seconds=settings.resync_seconds,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set, then reconciles under way may end, for a while; cancelled, they end at once."""
        watcher = self._watcher()
        watcher.start()
        self._vitals.watching_begins()
        try:
            async with self._loads, self._rollouts, background(self._lister.run(), "lister"):
                while not self._lister.synced and not stop.is_set():
                    await asyncio.sleep(POLL_SECONDS)
                _LOG.info("the first lists are done", extra={"models": len(self._cache.keys())})
                async with self._scaled(), background(self._workers.run(), "workers") as workers:
                    await stop.wait()
                    self.queue.close()
                    await asyncio.wait([workers], timeout=self._settings.stop_seconds)
        finally:
            self._ended = True
            await watcher.stop(timeout_seconds=2.0)
            self._vitals.watching_ends()

    def catch_up(self) -> None:
        """The API server is back after a silence: list at once what the watches will only report by and by."""
        for resource in WATCHED:
            self._lister.soon(resource)

    def _may_write(self) -> bool:
        """A later term is none of ours, even if the Lease came back to this process."""
        return self._elector.holds() and not self._ended

    @contextlib.asynccontextmanager
    async def _scaled(self) -> AsyncIterator[None]:
        """The scaling loop, where there is a Prometheus to read demand from."""
        if self._scaling is None:
            yield
            return
        async with background(self._scaling.run(), "scaling"):
            yield

    def _scaling_loop(self, client: KubeClient, prometheus: Prometheus) -> ScalingLoop:
        settings = self._settings
        loop = ScalingLoop(
            client,
            settings=settings.scaling,
            reader=DemandReader(prometheus, window_seconds=settings.scaling_window_seconds),
            past=PastReader(
                prometheus,
                step_seconds=settings.scaling_step_seconds,
                window_seconds=settings.scaling_window_seconds,
            ),
            engines=EngineReader(token_file=settings.engine_token_file, timeout_seconds=settings.load_timeout_seconds),
            metrics=self._metrics.scaling,
            keys=self._cache.keys,
            picture=lambda key: self._cache.picture(key, now=_now(), loads={}),
            namespaces=settings.serving_namespaces,
            may_write=self._may_write,
            wake=self.queue.add,
        )
        self._cache.advice = loop.advice
        return loop

    def _reconciler(self, client: KubeClient, reporter: Reporter) -> Reconciler:
        def done(action: Action) -> None:
            self._metrics.actions.labels(type(action).__name__).inc()
            reporter.action_done(action)
            if isinstance(action, SaveRollout):
                self._rollouts.saved(action)
            if isinstance(action, WriteTable):
                self._rollouts.moved(action)

        executor = Executor(client, self._cache, may_write=self._may_write, now=_now, on_done=done)
        return Reconciler(
            client,
            self._cache,
            executor=executor,
            loads=self._loads,
            rollouts=self._rollouts,
            settings=self._settings.pool,
            rollout_defaults=RolloutDefaults(scrape_seconds=self._settings.scrape_seconds),
            may_write=self._may_write,
            now=_now,
            new_salt=lambda: secrets.token_hex(8),
            on_status=reporter.status_changed,
        )

    def _watcher(self) -> Watcher:
        loop = asyncio.get_running_loop()
        settings = self._settings

        def seen(resource: Resource, record: AnyRecord, deleted: bool) -> None:
            take = self._cache.observe_deleted if deleted else self._cache.observe
            loop.call_soon_threadsafe(take, resource, record)

        def restarted(reason: str) -> None:
            loop.call_soon_threadsafe(self._metrics.watch_restarts.labels(reason).inc)

        report = WatchReport(
            seen=seen,
            alive=lambda resource: _later(loop, self._vitals.watch_alive, resource),
            listed=lambda resource: _later(loop, self._lister.soon, resource),
            restarted=restarted,
        )
        return Watcher(
            lambda: load_access(kubeconfig=settings.kubeconfig),
            settings=WatcherSettings(
                namespaces=settings.serving_namespaces,
                silence_seconds=settings.watch_silence_seconds,
                restart_seconds=settings.watch_restart_seconds,
            ),
            report=report,
        )


@contextlib.asynccontextmanager
async def background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Run beside the body, and be cancelled with its end; an error of the work ends the body."""
    body = asyncio.current_task()
    assert body is not None
    task = asyncio.create_task(work, name=name)

    def ended(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            body.cancel()

    task.add_done_callback(ended)
    try:
        yield task
    except asyncio.CancelledError:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error from None
        raise
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _later(loop: asyncio.AbstractEventLoop, call: Any, resource: Resource) -> None:
    """From the watcher's thread into ours; a loop that is closing takes nothing in."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, resource)


def _now() -> datetime:
    return datetime.now(UTC)


def _prometheus(settings: Settings) -> Prometheus | None:
    if not settings.prometheus_url:
        return None
    return Prometheus(settings.prometheus_url, timeout_seconds=settings.prometheus_timeout_seconds)

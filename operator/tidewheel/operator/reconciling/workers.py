"""The workers: each takes a model from the queue, reconciles it, and says when it is looked at again."""

import asyncio
import logging
import random
import time
from typing import Final

from tidewheel.operator.errors import LeadershipLost
from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.reconciling.queue import QueueClosed, WorkQueue
from tidewheel.operator.reconciling.reconciler import Outcome, Reconciler
from tidewheel.operator.serving.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)
BUG_RETRY_SECONDS: Final = 30.0


class Workers:
    """A fixed number of workers on one queue."""

    def __init__(
        self, reconciler: Reconciler, queue: WorkQueue, *, metrics: Metrics, number: int, resync_seconds: float
    ) -> None:
        self._reconciler = reconciler
        self._queue = queue
        self._metrics = metrics
        self._number = number
        self._resync_seconds = resync_seconds

    async def run(self) -> None:
        """Until the queue is closed and every reconcile under way has ended; cancelled, they end at once."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._number):
                group.create_task(self._work(), name=f"worker {number}")

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.take()
            except QueueClosed:
                return
            try:
                await self._look_at(key)
            finally:
                self._queue.done(key)

    async def _look_at(self, key: ModelKey) -> None:
        began = time.monotonic()
        try:
            outcome = await self._reconciler.reconcile(key)
        except LeadershipLost as error:
            _LOG.warning("%s: %s", key, error, extra=_fields(key))
            self._metrics.reconciles.labels("leadership_lost").inc()
            return
        except Exception:
            # A bug in one model's plan must not stop the others.
            _LOG.exception("%s: the reconcile failed on a bug of ours", key, extra=_fields(key))
            self._metrics.reconciles.labels("bug").inc()
            self._queue.retry(key, at_least_seconds=BUG_RETRY_SECONDS)
            return
        self._metrics.reconcile_seconds.observe(time.monotonic() - began)
        self._schedule(key, outcome)

    def _schedule(self, key: ModelKey, outcome: Outcome) -> None:
        if outcome.failed:
            self._metrics.reconciles.labels("failed").inc()
            delay = self._queue.retry(key, at_least_seconds=outcome.at_least_seconds)
            _LOG.warning("%s: %s; again in %.1f s", key, outcome.failed, delay, extra=_fields(key))
            return
        self._metrics.reconciles.labels("ok").inc()
        self._queue.succeeded(key)
        if outcome.wake_seconds is not None:
            self._queue.add_after(key, outcome.wake_seconds)
        # The one look that needs no reason: whatever was missed everywhere else is found here.
        self._queue.add_after(key, self._resync_seconds * random.uniform(0.8, 1.2))


def _fields(key: ModelKey) -> dict[str, str]:
    return {"namespace": key.namespace, "model": key.model}

"""The judge's looks: one task per step under judgement, beside the workers: no reconcile waits for Prometheus."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor
from types import TracebackType
from typing import Final, Self

from tidewheel.clients.errors import ApiError, ClientsError
from tidewheel.clients.prometheus import Answer, Prometheus, PrometheusError
from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.planning.rollouts.evidence import JudgingOrder
from tidewheel.operator.rollouts.gateways import Gateways
from tidewheel.operator.rollouts.ledgers import Ledgers
from tidewheel.operator.rollouts.queries import Arms, custom_query, queries
from tidewheel.operator.rollouts.reading import CustomAnswers, Look, read
from tidewheel.operator.rollouts.tallies import JudgeTallies
from tidewheel.operator.tasks import KeyedTasks
from tidewheel.rollout.judge.findings import Verdict, VerdictKind
from tidewheel.rollout.judge.readings import Reading
from tidewheel.rollout.judge.session import StepSession

_LOG: Final = logging.getLogger(__name__)
_TINY: Final = 1e-3
"""Of a scrape: a sleep may end so early, and sums of seconds are not exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingSettings:
    """Times in seconds. ``lag_scrapes``: how far back a look lies, so that its samples have arrived."""

    lag_scrapes: float = 1.0
    retry_seconds: float = 5.0
    """After a look that could tell nothing; plus jitter, without end."""


class JudgeDesk:
    """Judges what it is told to follow. ``on_verdict`` is called after each look that says something."""

    def __init__(
        self,
        prometheus: Prometheus | None,
        gateways: Gateways,
        ledgers: Ledgers,
        *,
        settings: JudgingSettings,
        tallies: JudgeTallies,
        now: Callable[[], float],
        on_verdict: Callable[[ModelKey], None],
    ) -> None:
        self._prometheus = prometheus
        self._gateways = gateways
        self._ledgers = ledgers
        self._settings = settings
        self._tallies = tallies
        self._now = now
        self._on_verdict = on_verdict
        self._orders: dict[ModelKey, JudgingOrder] = {}
        self._tasks: KeyedTasks[ModelKey] = KeyedTasks()
        self._verdicts: dict[ModelKey, Verdict] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()
        if self._prometheus is not None:
            self._prometheus.close()

    def verdict(self, key: ModelKey) -> Verdict | None:
        """The last one, of whatever step it was."""
        return self._verdicts.get(key)

    def follow(self, key: ModelKey, order: JudgingOrder | None) -> None:
        """From now on judge this step; None: nothing of this model. Another step or setting begins new evidence."""
        before = self._orders.get(key)
        if order is None:
            self._orders.pop(key, None)
            self._verdicts.pop(key, None)
            self._tasks.stop(key)
            return
        self._orders[key] = order
        same = before is not None and (before.context, before.settings) == (order.context, order.settings)
        if not same or not self._tasks.is_running(key):
            self._tasks.start(key, self._judge(key, order), name=f"judge of {key}")

    async def _judge(self, key: ModelKey, order: JudgingOrder) -> None:
        """Never ends by itself; an error is a blind look, and is said."""
        session = await self._session(key, order)
        due = self._arrived(session.first_look, order)
        while True:
            await asyncio.sleep(max(0.0, due - self._now()))
            verdict = await self._look(key, session)
            due = self._due(order, session.block_ends, is_blind=_is_blind(verdict))

    def _due(self, order: JudgingOrder, block_ends: float | None, *, is_blind: bool) -> float:
        """When the block under way can be read, for no look before that says anything; soon after a blind look."""
        now, settings = self._now(), order.settings
        if is_blind or block_ends is None:
            return now + min(settings.block_seconds, self._settings.retry_seconds) * random.uniform(1.0, 1.2)
        return max(self._arrived(block_ends, order), now + settings.scrape_seconds / 4)

    def _arrived(self, moment: float, order: JudgingOrder) -> float:
        """When a look reaches back to the first scrape at or after this moment."""
        scrape = order.settings.scrape_seconds
        return ceil(moment / scrape - _TINY) * scrape + self._lag(order)

    async def _session(self, key: ModelKey, order: JudgingOrder) -> StepSession:
        """With the evidence of the operator before us, if this step had some."""
        while True:
            try:
                ledger = await self._ledgers.of(key)
            except ApiError as error:
                _LOG.warning("%s: the ledger cannot be read, the judge waits for it: %s", key, error)
                await asyncio.sleep(self._settings.retry_seconds)
                continue
            layout, blocks = ledger.blocks_of(order.context, order.settings)
            return StepSession(order.settings, order.context, layout=layout, blocks=blocks)

    async def _look(self, key: ModelKey, session: StepSession) -> Verdict | None:
        order = self._orders[key]
        scrape = order.settings.scrape_seconds
        at = floor((self._now() - self._lag(order)) / scrape + _TINY) * scrape
        try:
            verdict = session.observe(await self._read(key, order, at=at))
        except Exception as error:
            _LOG.exception("%s: a look of the judge failed on a bug of ours", key)
            verdict = _failed(session, at, error)
        if verdict is None:
            return None
        changed = verdict != self._verdicts.get(key)
        self._tallies.looked(key, verdict)
        if changed:
            # Into the ledger first: once it acts, this task is over.
            await self._record(key, session, verdict)
            self._verdicts[key] = verdict
            self._on_verdict(key)
        return verdict

    async def _record(self, key: ModelKey, session: StepSession, verdict: Verdict) -> None:
        if session.layout is None:
            return
        try:
            ledger = await self._ledgers.of(key)
        except ApiError as error:
            _LOG.warning("%s: a look is not recorded: %s", key, error)
            return
        self._ledgers.save(
            key,
            ledger.with_look(
                context=session.step,
                settings=session.settings,
                layout=session.layout,
                verdict=verdict,
                block=session.last_block,
            ),
        )

    def _lag(self, order: JudgingOrder) -> float:
        return self._settings.lag_scrapes * order.settings.scrape_seconds

    async def _read(self, key: ModelKey, order: JudgingOrder, *, at: float) -> Reading:
        arms = Arms(namespace=key.namespace, model=key.model, base=order.base, canary=order.canary)
        asked = queries(arms)
        answers = await asyncio.gather(*(self._ask(query, at) for query in asked.values()))
        gateways: Mapping[str, str] = {}
        try:
            gateways = await self._gateways.ready()
        except ClientsError as error:
            _LOG.warning("%s: gateways cannot be listed, so the data may be partial: %s", key, error)
            answers = [PrometheusError(f"which gateways are due is not known: {error}") for _ in answers]
        return read(
            Look(
                at=at,
                arms=arms,
                answers=dict(zip(asked, answers, strict=True)),
                gateways=gateways,
                ready=order.ready,
                custom=await self._custom(order, at),
            )
        )

    async def _custom(self, order: JudgingOrder, at: float) -> CustomAnswers:
        found = {}
        for metric in order.settings.custom:
            base, canary = await asyncio.gather(
                *(self._ask(custom_query(metric, version), at) for version in (order.base, order.canary))
            )
            found[metric.name] = (base, canary)
        return found

    async def _ask(self, query: str, at: float) -> Answer | PrometheusError:
        if self._prometheus is None:
            return PrometheusError("no Prometheus is configured; start the operator with --prometheus-url")
        try:
            answer = await self._prometheus.instant(query, at=at)
        except PrometheusError as error:
            self._tallies.query_failed()
            return error
        self._tallies.queried(answer.seconds)
        return answer


def _is_blind(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.kind is VerdictKind.BLIND


def _failed(session: StepSession, at: float, error: Exception) -> Verdict:
    return Verdict(
        rollout_id=session.step.rollout_id,
        step=session.step.step,
        at=at,
        kind=VerdictKind.BLIND,
        reason="JudgeFailed",
        message=f"cannot judge: the judge itself failed on {error!r}; this is a bug of Tidewheel's",
    )

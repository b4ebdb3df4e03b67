"""Everything that is found out for rollouts beside the workers: confirmations, verdicts, traffic. One seam for them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.prometheus import Prometheus
from tidewheel.operator.planning.actions import SaveRollout, WriteTable
from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.planning.rollouts.evidence import RolloutEvidence
from tidewheel.operator.planning.rollouts.plan import RolloutPlan
from tidewheel.operator.rollouts.gateways import ConfirmationDesk, Gateways, GatewaySettings
from tidewheel.operator.rollouts.judging import JudgeDesk, JudgingSettings
from tidewheel.operator.rollouts.ledgers import Ledgers
from tidewheel.operator.rollouts.shadows import ShadowDesk, ShadowSettings
from tidewheel.operator.rollouts.tallies import JudgeTallies
from tidewheel.operator.rollouts.traffic import TrafficDesk
from tidewheel.rollout.ledger.records import LedgerTransition


class RolloutDesk:
    """Follows what the last plan of each model asks to be found out; ``on_change`` is called when something is."""

    def __init__(
        self,
        client: KubeClient,
        *,
        prometheus: Prometheus | None,
        gateways: GatewaySettings,
        judging: JudgingSettings,
        tallies: JudgeTallies,
        token_file: Path | None = None,
        may_write: Callable[[], bool],
        now: Callable[[], datetime],
        on_change: Callable[[ModelKey], None],
    ) -> None:
        self._has_judge = prometheus is not None
        self._tallies = tallies
        self._now = now
        found = Gateways(client, gateways, clock=time.monotonic)
        self._ledgers = Ledgers(client, may_write=may_write)
        self._confirmations = ConfirmationDesk(found, gateways, on_change=on_change)
        self._judges = JudgeDesk(
            prometheus,
            found,
            self._ledgers,
            settings=judging,
            tallies=tallies,
            now=self._seconds,
            on_verdict=on_change,
        )
        self._traffic = TrafficDesk(prometheus, now=self._seconds, on_known=on_change)
        self._shadows = ShadowDesk(
            client, token_file=token_file, settings=ShadowSettings(), may_write=may_write, on_verdict=on_change
        )
        self._notes: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._confirmations)
        await self._stack.enter_async_context(self._judges)
        await self._stack.enter_async_context(self._shadows)
        self._stack.push_async_callback(self._traffic.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        if self._notes:
            await asyncio.wait(self._notes, timeout=1.0)
        await self._ledgers.close()

    def evidence(self, key: ModelKey) -> RolloutEvidence:
        """What is known now."""
        return RolloutEvidence(
            confirmed=self._confirmations.confirmed(key),
            verdict=self._judges.verdict(key),
            quality=self._shadows.verdict(key),
            traffic=self._traffic.facts(key),
            has_judge=self._has_judge,
        )

    def follow(self, key: ModelKey, plan: RolloutPlan | None, *, exists: bool) -> None:
        """Find out what this plan needs; None: no rollout is under way. ``exists``: there is a rule."""
        self._confirmations.follow(key, plan.confirming if plan else None)
        self._judges.follow(key, plan.judging if plan else None)
        self._traffic.follow(key, plan.traffic if plan else None)
        self._shadows.follow(key, plan.shadowing if plan else None)
        if not exists:
            self._tallies.forget(key)

    def moved(self, action: WriteTable) -> None:
        """A table was written: it may have been the judge's rollback."""
        self._tallies.moved(ModelKey(action.namespace, action.spec.model), action.reason)

    def saved(self, action: SaveRollout) -> None:
        """A decision was carried out: its transitions are counted and go into the ledger."""
        key, at = action.rule.key, self._seconds()
        self._tallies.saved(key, action.rollout, [event.reason for event in action.events])
        noted = [
            LedgerTransition(at=at, rollout_id=action.rollout.id, reason=event.reason, message=event.message)
            for event in action.events
        ]
        if noted:
            task = asyncio.create_task(self._ledgers.note(key, noted), name=f"ledger of {key}")
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)

    def _seconds(self) -> float:
        return self._now().timestamp()

"""A rollout on live processes: the operator's queries, reader, judge and step machine; the table is a file."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import floor

from bench.live.programs import MODEL, NAMESPACE, Platform

from tidewheel.clients.prometheus import Answer, Prometheus, PrometheusError
from tidewheel.operator.rollouts.queries import Arms, Series, queries
from tidewheel.operator.rollouts.reading import Look, read
from tidewheel.rollout.judge.findings import Verdict
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.session import StepSession
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.machine.decisions import decide
from tidewheel.rollout.machine.policy import RolloutPolicy
from tidewheel.rollout.machine.situation import Situation, TableFacts, VersionFacts
from tidewheel.rollout.machine.splits import normal
from tidewheel.rollout.machine.state import RolloutState

BASE = "v42"
Endpoints = Callable[[float], Mapping[str, Sequence[str]]]
"""Engines of each version, given the canary's share of traffic."""


@dataclass(slots=True, kw_only=True)
class LiveRollout:
    """One rollout from ``BASE`` to ``canary``, until it ends or its time is over."""

    canary: str
    platform: Platform
    prometheus: Prometheus
    settings: JudgeSettings
    policy: RolloutPolicy
    endpoints: Endpoints
    state: RolloutState | None = None
    verdict: Verdict | None = None
    split: dict[str, int] = field(default_factory=lambda: {BASE: 10_000})
    decided_at: float = 0.0
    """When the last verdict was known."""
    query_seconds: list[float] = field(default_factory=list)
    _session: StepSession | None = None
    _next_look: float = 0.0

    async def run(self, *, longest_seconds: float) -> None:
        """Tick by tick."""
        ends = time.time() + longest_seconds
        while time.time() < ends and not (self.state is not None and self.state.is_finished):
            await self._tick()
            await asyncio.sleep(0.05)

    async def _tick(self) -> None:
        confirmed = await asyncio.to_thread(self.platform.obeyed)
        decision = decide(self._situation(confirmed), self.state)
        self.state = decision.state
        if decision.split is not None:
            self.split = normal(decision.split)
            self._write()
            return
        context = decision.judge
        if context is None:
            return
        if self._session is None or self._session.step != context:
            self._session, self._next_look = StepSession(self.settings, context), 0.0
        await self._look(self._session)

    def _situation(self, confirmed: Mapping[str, int | None]) -> Situation:
        ready = {version: len(names) for version, names in self.endpoints(self._share()).items()}
        state = self.state
        return Situation(
            now=datetime.now(UTC),
            goal={self.canary: 10_000},
            policy=self.policy,
            versions={version: VersionFacts(digest=f"sha256:{version}", ready=ready[version]) for version in ready},
            need=lambda _version, _share: 1,
            table=TableFacts(split=self.split, generation=self.platform.generation),
            confirmed=confirmed,
            verdict=self.verdict,
            slo_seconds={
                version: {kind: self.platform.slo_ms[f"{kind.value}Ms"] / 1000 for kind in Latency}
                for version in (BASE, self.canary)
            },
            new_rollout_id=state.id if state is not None else self._id,
        )

    def _write(self) -> None:
        previous = self.state.start if self.state is not None else {}
        self.platform.route(self.split, endpoints=self.endpoints(self._share()), previous=previous, rollout_id=self._id)

    @property
    def _id(self) -> str:
        return f"to-{self.canary}"

    def _share(self) -> float:
        return self.split.get(self.canary, 0) / 10_000

    async def _look(self, session: StepSession) -> None:
        scrape = self.settings.scrape_seconds
        at = floor((time.time() - scrape) / scrape) * scrape
        if at < max(self._next_look, session.first_look):
            return
        self._next_look = at + self.settings.block_seconds
        arms = Arms(namespace=NAMESPACE, model=MODEL, base=BASE, canary=self.canary)
        asked = queries(arms)
        answers = await asyncio.gather(*(self._ask(query, at) for query in asked.values()))
        look = Look(
            at=at,
            arms=arms,
            answers=dict(zip(asked, answers, strict=True)),
            gateways=dict.fromkeys(self.platform.admins, ""),
            ready={version: len(names) for version, names in self.endpoints(self._share()).items()},
        )
        self.verdict = session.observe(read(look)) or self.verdict
        self.decided_at = time.time()

    async def _ask(self, query: str, at: float) -> Answer | PrometheusError:
        try:
            answer = await self.prometheus.instant(query, at=at)
        except PrometheusError as error:
            return error
        self.query_seconds.append(answer.seconds)
        return answer


QUERIES_PER_LOOK = len(Series)

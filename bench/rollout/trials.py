"""One whole rollout on drawn traffic: the real judge and the real step machine, a world of numbers around them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import numpy as np
from bench.rollout.quick import NOT_ASKED, QuickJudge
from bench.rollout.traffic import SMALL_PLATFORM, Fault, Noise, Traffic

from tidewheel.rollout.judge.findings import Verdict
from tidewheel.rollout.judge.session import StepSession
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.judge.verdicts import StepJudge
from tidewheel.rollout.machine.baking import count_time
from tidewheel.rollout.machine.decisions import decide
from tidewheel.rollout.machine.policy import RolloutPolicy, Step
from tidewheel.rollout.machine.situation import Decision, Situation, TableFacts, VersionFacts
from tidewheel.rollout.machine.splits import normal
from tidewheel.rollout.machine.state import Outcome, RolloutState

START: Final = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
POLICY: Final = RolloutPolicy(steps=tuple(map(Step, (100, 500, 2500, 5000, 10_000))), bake_seconds=600)
SLO: Final = {kind.value: shape.slo for kind, shape in SMALL_PLATFORM.items()}
HISTORY_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A kind of rollout to run many times."""

    rate: float
    noise: Noise = field(default_factory=Noise)
    fault: Fault = field(default_factory=Fault)
    base_errors: float = 0.001
    replicas: int = 20
    settings: JudgeSettings = field(default_factory=JudgeSettings)
    policy: RolloutPolicy = POLICY
    longest_seconds: float = 4 * 3600.0
    every_look: bool = False
    """Work out every verdict, also those from which nothing can follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one rollout ended; ``share`` is the canary's when it did, ``exposed`` the requests that met the fault."""

    outcome: Outcome | None
    reason: str
    seconds: float
    share: float
    exposed: float

    @property
    def rolled_back(self) -> bool:
        """By the judge."""
        return self.outcome is Outcome.REJECTED


def run(trial: Trial, seed: int) -> Result:
    """One rollout. The same seed gives the same rollout."""
    return _Life(trial, np.random.default_rng(seed)).run()


def run_many(trial: Trial, seeds: Iterable[int]) -> list[Result]:
    """One after the other."""
    return [run(trial, seed) for seed in seeds]


class _Life:
    """Time goes from look to look; gateways obey at once; whatever is asked for is ready."""

    def __init__(self, trial: Trial, rng: np.random.Generator) -> None:
        self._trial = trial
        self._traffic = Traffic(
            rng,
            rate=trial.rate,
            noise=trial.noise,
            fault=trial.fault,
            base_errors=trial.base_errors,
            replicas=trial.replicas,
        )
        self._now = START
        self._table = TableFacts(split={"v42": 10_000}, generation=1)
        self._state: RolloutState | None = None
        self._session: StepSession | None = None
        self._verdict: Verdict | None = None

    def run(self) -> Result:
        self._traffic.advance(HISTORY_SECONDS, 0.0)
        ends = self._now + timedelta(seconds=self._trial.longest_seconds)
        while self._now < ends:
            decision = self._look()
            if decision.state is not None and decision.state.is_finished:
                break
            if decision.split is None and decision.judge is not None:
                self._bake(decision)
        state = self._state
        assert state is not None
        return Result(
            outcome=state.outcome,
            reason=self._verdict.reason if self._verdict is not None and self._verdict.rolls_back else state.reason,
            seconds=(self._now - START).total_seconds(),
            share=state.canary_share,
            exposed=self._traffic.exposed,
        )

    def _look(self) -> Decision:
        decision = decide(
            Situation(
                now=self._now,
                goal={"v43": 10_000},
                policy=self._trial.policy,
                versions=self._versions(),
                need=lambda _, share: max(1, round(self._trial.replicas * share / 10_000)),
                table=self._table,
                confirmed={"all": self._table.generation},
                verdict=self._verdict,
                slo_seconds={"v43": SLO},
                new_rollout_id="r1",
            ),
            self._state,
        )
        self._state = decision.state
        if decision.split is not None:
            table = self._table
            self._table = replace(
                table, split=normal(decision.split), generation=table.generation + 1, rollout_id="r1", by_person=False
            )
        return decision

    def _versions(self) -> dict[str, VersionFacts]:
        """As many replicas of the canary as its step needs; base keeps all of its own."""
        share = self._state.split.get("v43", 0) if self._state is not None else 0
        replicas = max(1, round(self._trial.replicas * share / 10_000))
        return {
            "v42": VersionFacts(digest="sha256:v42", ready=self._trial.replicas),
            "v43": VersionFacts(digest="sha256:v43", ready=replicas),
        }

    def _bake(self, decision: Decision) -> None:
        """Serve until the next look of the judge: settling first, then block after block."""
        context, settings = decision.judge, self._trial.settings
        assert context is not None
        if self._session is None or self._session.step != context:
            assert self._state is not None
            judge = StepJudge if self._trial.every_look else partial(QuickJudge, bake_seconds=self._state.bake_seconds)
            self._session = StepSession(settings, context, judge=judge)
            self._serve(settings.settle_scrapes * settings.scrape_seconds)
            self._session.observe(self._traffic.reading(self._now.timestamp()))
        self._verdict = self._next_verdict(self._session)
        while self._verdict is not None and self._verdict.reason == NOT_ASKED:
            assert self._state is not None
            self._state = count_time(self._state, self._verdict, counts=True)
            self._verdict = self._next_verdict(self._session)

    def _next_verdict(self, session: StepSession) -> Verdict | None:
        self._serve(session.settings.block_seconds)
        return session.observe(self._traffic.reading(self._now.timestamp()))

    def _serve(self, seconds: float) -> None:
        self._traffic.advance(seconds, self._table.split.get("v43", 0) / 10_000)
        self._now += timedelta(seconds=seconds)

"""Metrics of rollouts. Labels are namespace, model and what happened; never a rollout's id or a pod's name."""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tidewheel.crds.rolloutstatus import RolloutStatus
from tidewheel.operator.planning.records import ModelKey
from tidewheel.rollout.judge.findings import Verdict, VerdictKind
from tidewheel.rollout.machine.state import Phase

_QUERY_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROLLBACK_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0)
_MODEL: Final = ("namespace", "model")


class JudgeTallies:
    """Kept for the whole process; series of a model go when its rule has gone."""

    def __init__(self, registry: CollectorRegistry, *, now: Callable[[], float]) -> None:
        self._now = now
        self._counted: dict[ModelKey, tuple[str, str, float]] = {}
        self._breached: dict[ModelKey, float] = {}
        self._looks = Counter(
            "tidewheel_rollout_looks", "Looks of the judge, by verdict.", (*_MODEL, "verdict"), registry=registry
        )
        self._evidence = Gauge(
            "tidewheel_rollout_evidence",
            "Natural logarithm of the odds against chance, by metric.",
            (*_MODEL, "metric"),
            registry=registry,
        )
        self._verdict = Gauge(
            "tidewheel_rollout_verdict", "1 for the verdict of the last look.", (*_MODEL, "verdict"), registry=registry
        )
        self._queries = Histogram(
            "tidewheel_rollout_query_seconds",
            "Duration of a query to Prometheus.",
            buckets=_QUERY_BUCKETS,
            registry=registry,
        )
        self._query_errors = Counter(
            "tidewheel_rollout_query_errors", "Queries without a usable answer.", registry=registry
        )
        self._rollbacks = Histogram(
            "tidewheel_rollout_rollback_seconds",
            "From the judge's verdict that rolls back to the accepted write of the table.",
            buckets=_ROLLBACK_BUCKETS,
            registry=registry,
        )
        self._step = Gauge(
            "tidewheel_rollout_step", "Step under way, from 1; 0 when none is.", _MODEL, registry=registry
        )
        self._weight = Gauge(
            "tidewheel_rollout_weight", "Share of the new version in basis points.", _MODEL, registry=registry
        )
        self._phase = Gauge(
            "tidewheel_rollout_phase", "1 for the phase under way.", (*_MODEL, "phase"), registry=registry
        )
        self._transitions = Counter(
            "tidewheel_rollout_transitions", "What happened to rollouts.", (*_MODEL, "reason"), registry=registry
        )
        self._outcomes = Counter(
            "tidewheel_rollout_outcomes", "Rollouts that ended, by outcome.", (*_MODEL, "outcome"), registry=registry
        )
        self._spent = Counter(
            "tidewheel_rollout_phase_seconds", "Time spent in each phase.", (*_MODEL, "phase"), registry=registry
        )
        self._baked = Gauge(
            "tidewheel_rollout_baked_seconds", "Judged time of the step so far.", _MODEL, registry=registry
        )

    def queried(self, seconds: float) -> None:
        """A query was answered."""
        self._queries.observe(seconds)

    def query_failed(self) -> None:
        """A query was not."""
        self._query_errors.inc()

    def looked(self, key: ModelKey, verdict: Verdict) -> None:
        """The judge said something."""
        self._looks.labels(*key, verdict.kind.value).inc()
        for kind in VerdictKind:
            self._verdict.labels(*key, kind.value).set(kind is verdict.kind)
        for finding in verdict.findings:
            self._evidence.labels(*key, finding.metric).set(finding.evidence)
        if verdict.rolls_back:
            self._breached.setdefault(key, self._now())
        else:
            self._breached.pop(key, None)

    def moved(self, key: ModelKey, reason: str) -> None:
        """The table was written. A way back that nobody's verdict asked for is no answer to one."""
        breached = self._breached.pop(key, None)
        if breached is not None and reason == "RolledBack":
            self._rollbacks.observe(max(0.0, self._now() - breached))

    def saved(self, key: ModelKey, rollout: RolloutStatus, reasons: Iterable[str]) -> None:
        """Progress was stored: the time since the last time belongs to the phase that the rollout had then."""
        for reason in reasons:
            self._transitions.labels(*key, reason).inc()
        before, at = self._counted.get(key), self._now()
        if before is not None and before[1] != Phase.FINISHED:
            self._spent.labels(*key, before[1]).inc(max(0.0, at - before[2]))
        if rollout.outcome is not None and (before is None or before[:2] != (rollout.id, Phase.FINISHED)):
            self._outcomes.labels(*key, rollout.outcome).inc()
        self._counted[key] = (rollout.id, rollout.phase, at)
        for phase in Phase:
            self._phase.labels(*key, phase.value).set(phase.value == rollout.phase)
        running = rollout.outcome is None
        self._step.labels(*key).set((rollout.step or 0) + 1 if running else 0)
        self._weight.labels(*key).set((rollout.split or {}).get(rollout.canary or "", 0) if running else 0)
        self._baked.labels(*key).set(rollout.baked_seconds or 0 if running else 0)

    def forget(self, key: ModelKey) -> None:
        """The rule is gone, and with it the model's series."""
        self._breached.pop(key, None)
        if self._counted.pop(key, None) is None:
            return
        labels = dict(zip(_MODEL, key, strict=True))
        for metric in (
            *(self._looks, self._evidence, self._verdict, self._step, self._weight, self._phase),
            *(self._transitions, self._outcomes, self._spent, self._baked),
        ):
            metric.remove_by_labels(labels)

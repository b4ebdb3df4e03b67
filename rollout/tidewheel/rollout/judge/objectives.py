"""The version's own promise: at most 1 % of its requests slower than its SLO."""

from math import log

from tidewheel.rollout.evidence.processes import EvidenceProcess
from tidewheel.rollout.judge.blocks import Block
from tidewheel.rollout.judge.findings import Finding, Standing, percent
from tidewheel.rollout.judge.metrics import SLO_OF, WORDS, Latency

_POOLED_BLOCKS = 4
_GROSS = 3.0
"""From this multiple of the limit on, one block of evidence is enough."""


class ObjectiveWatch:
    """Evidence that the canary's share over its SLO is above the limit, while base keeps to its own.

    The share is absolute, so trouble that lasts two minutes would count as four blocks; unless the share is far over
    the limit, whole groups of four must say the same, at least at the odds that let a step end.
    """

    def __init__(self, latency: Latency, *, limit: float, needed_odds: float, pooled_odds: float) -> None:
        self._latency = latency
        self._metric = SLO_OF[latency]
        self._limit = limit
        self._needed = log(needed_odds)
        self._pooled_needed = log(pooled_odds)
        self._over_limit = EvidenceProcess()
        self._pooled = EvidenceProcess()
        self._group = (0.0, 0.0)
        self._grouped = 0
        self._over = {"canary": 0.0, "base": 0.0}
        self._seen = {"canary": 0.0, "base": 0.0}

    def add(self, block: Block) -> None:
        """One block."""
        for name, arm in (("canary", block.canary), ("base", block.base)):
            self._seen[name] += sum(arm.latency.get(self._latency, ()))
            self._over[name] += arm.over_slo.get(self._latency, 0.0)
        seen = sum(block.canary.latency.get(self._latency, ()))
        over = min(block.canary.over_slo.get(self._latency, 0.0), seen)
        odds = self._limit / (1 - self._limit)
        self._over_limit.add(limit_odds=odds, counts=[(over, seen - over)])
        self._group = (self._group[0] + over, self._group[1] + seen - over)
        self._grouped += 1
        if self._grouped == _POOLED_BLOCKS:
            self._pooled.add(limit_odds=odds, counts=[self._group])
            self._group, self._grouped = (0.0, 0.0), 0

    def finding(self) -> Finding:
        """As it stands now."""
        canary, base = self._share("canary"), self._share("base")
        evidence = self._over_limit.log_evidence()[0]
        return Finding(
            metric=self._metric.value,
            standing=self._standing(canary, base, evidence),
            canary=canary,
            base=base,
            estimate=canary,
            limit=self._limit,
            canary_samples=self._seen["canary"],
            base_samples=self._seen["base"],
            evidence=evidence,
            needed=self._needed,
            words=self._words(canary, base),
        )

    def _share(self, arm: str) -> float | None:
        return min(1.0, self._over[arm] / self._seen[arm]) if self._seen[arm] else None

    def _standing(self, canary: float | None, base: float | None, evidence: float) -> Standing:
        if canary is None:
            return Standing.THIN
        if canary <= self._limit:
            return Standing.CLEAR
        if base is not None and base > self._limit:
            return Standing.BOTH_OVER
        lasting = self._pooled.log_evidence()[0] >= self._pooled_needed or canary >= _GROSS * self._limit
        return Standing.BREACH if evidence >= self._needed and lasting else Standing.SUSPECT

    def _words(self, canary: float | None, base: float | None) -> str:
        if canary is None:
            return f"{WORDS[self._metric]}: no requests yet"
        against = f", base {percent(base)}" if base is not None else ""
        requests = f"{percent(canary)} of {self._seen['canary']:.0f} requests"
        return f"{WORDS[self._metric]}: canary {requests}{against}, limit {percent(self._limit)}"

"""Bad requests of the canary against those of base: errors, and streams that stall."""

from math import log

from tidewheel.crds.rolloutchoices import Metric
from tidewheel.rollout.evidence.processes import EvidenceProcess, Side
from tidewheel.rollout.judge.blocks import ArmBlock, Block
from tidewheel.rollout.judge.findings import Finding, Standing, percent
from tidewheel.rollout.judge.metrics import WORDS

_LARGEST_RATE = 0.999


class ProportionWatch:
    """Evidence that the canary's rate is above base's, and evidence that it is not above it by ``harm``."""

    def __init__(self, metric: Metric, *, limit: float, harm: float, needed_odds: float, clear_odds: float) -> None:
        self._metric = metric
        self._limit = limit
        self._harm = harm
        self._needed = log(needed_odds)
        self._clear = log(clear_odds)
        self._worse = EvidenceProcess()
        self._harmless = EvidenceProcess(side=Side.BELOW)
        self._canary_bad = self._base_bad = 0.0
        self._canary = self._base = 0.0

    def add(self, block: Block) -> None:
        """One block. Base's rate so far stands in for its true one where harm is ruled out."""
        canary, base = block.canary.requests, block.base.requests
        canary_bad, base_bad = (min(self._bad(arm), arm.requests) for arm in (block.canary, block.base))
        self._canary += canary
        self._base += base
        self._canary_bad += canary_bad
        self._base_bad += base_bad
        if canary and base:
            self._worse.add(limit_odds=canary / base, counts=[(canary_bad, base_bad)])
        if canary and self._base:
            harmful = min(self._base_bad / self._base + self._harm, _LARGEST_RATE)
            self._harmless.add(limit_odds=harmful / (1 - harmful), counts=[(canary_bad, canary - canary_bad)])

    def finding(self) -> Finding:
        """As it stands now."""
        canary = self._canary_bad / self._canary if self._canary else None
        base = self._base_bad / self._base if self._base else None
        increase = canary - base if canary is not None and base is not None else None
        evidence, ruled_out = self._worse.log_evidence()[0], self._harmless.log_evidence()[0]
        return Finding(
            metric=self._metric.value,
            standing=self._standing(increase, evidence, ruled_out),
            canary=canary,
            base=base,
            estimate=increase,
            limit=self._limit,
            canary_samples=self._canary,
            base_samples=self._base,
            evidence=evidence,
            needed=self._needed,
            ruled_out=ruled_out,
            words=self._words(canary, base),
        )

    def _bad(self, arm: ArmBlock) -> float:
        return arm.stalls if self._metric is Metric.STALLS else arm.errors

    def _standing(self, increase: float | None, evidence: float, ruled_out: float) -> Standing:
        if increase is not None and increase > self._limit:
            return Standing.BREACH if evidence >= self._needed else Standing.SUSPECT
        return Standing.CLEAR if ruled_out >= self._clear else Standing.THIN

    def _words(self, canary: float | None, base: float | None) -> str:
        if canary is None or base is None:
            return f"{WORDS[self._metric]}: no requests to compare"
        return (
            f"{WORDS[self._metric]} canary {self._canary_bad:.0f}/{self._canary:.0f} ({percent(canary)}), "
            f"base {self._base_bad:.0f}/{self._base:.0f} ({percent(base)}), limit +{percent(self._limit)}"
        )

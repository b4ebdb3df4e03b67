"""A user's metric: one number per arm and look, with a limit and a direction.

Without counts there is no likelihood. What always holds is the sign: if the metric's median is within its limit, a look
is beyond it at most half of the time, whatever the metric is. Twelve looks in a row are then 4,096:1.
"""

from math import log

from tidewheel.crds.rolloutchoices import Direction
from tidewheel.rollout.evidence.processes import NO_NOISE, EvidenceProcess
from tidewheel.rollout.judge.blocks import Block
from tidewheel.rollout.judge.findings import Finding, Standing
from tidewheel.rollout.judge.readings import CustomReading
from tidewheel.rollout.judge.settings import CustomMetric


class CustomWatch:
    """Evidence that the metric is beyond its limit more often than chance."""

    def __init__(self, metric: CustomMetric, *, needed_odds: float) -> None:
        self._metric = metric
        self._needed = log(needed_odds)
        self._sign = EvidenceProcess(noise_levels=NO_NOISE)
        self._looks = self._beyond = 0
        self._last: CustomReading | None = None

    def add(self, block: Block) -> None:
        """One look; one without a number is not counted."""
        reading = block.custom.get(self._metric.name)
        crossed = is_crossed(self._metric, reading)
        if crossed is None:
            return
        self._last = reading
        self._looks += 1
        self._beyond += crossed
        self._sign.add(limit_odds=1.0, counts=[(float(crossed), float(not crossed))])

    def finding(self) -> Finding:
        """As it stands now: over the limit means beyond it now and in most looks."""
        evidence = self._sign.log_evidence()[0]
        crossed = is_crossed(self._metric, self._last)
        standing = Standing.CLEAR if crossed is False else Standing.THIN
        if crossed and 2 * self._beyond > self._looks:
            standing = Standing.BREACH if evidence >= self._needed else Standing.SUSPECT
        return custom_finding(
            self._metric, self._last, standing=standing, looks=self._looks, evidence=evidence, needed=self._needed
        )


def custom_finding(
    metric: CustomMetric, last: CustomReading | None, *, standing: Standing, looks: int, evidence: float, needed: float
) -> Finding:
    """The numbers of a user's metric, in words that repeat its limit."""
    value = _value(metric, last)
    shown = "no number" if value is None else f"{value:.4g}"
    kind = "times base" if metric.relative_to_base else ""
    bound = "at most" if metric.direction is Direction.HIGHER_IS_WORSE else "at least"
    return Finding(
        metric=metric.name,
        standing=standing,
        canary=last.canary if last else None,
        base=last.base if last else None,
        estimate=value,
        limit=metric.limit,
        canary_samples=looks,
        base_samples=looks,
        evidence=evidence,
        needed=needed,
        dry_run=metric.dry_run,
        words=f"{metric.name} {shown} {kind}".strip() + f" ({bound} {metric.limit:g}) in {looks} looks",
    )


def is_crossed(metric: CustomMetric, reading: CustomReading | None) -> bool | None:
    """Strictly beyond the limit; None: there is no number."""
    value = _value(metric, reading)
    if value is None:
        return None
    return value > metric.limit if metric.direction is Direction.HIGHER_IS_WORSE else value < metric.limit


def _value(metric: CustomMetric, reading: CustomReading | None) -> float | None:
    if reading is None or reading.canary is None:
        return None
    if not metric.relative_to_base:
        return reading.canary
    return reading.canary / reading.base if reading.base else None

"""`mode: limits`: the literal rules over the last minutes of the step, without any control of chance.

In this order: error rate over base's by more than the limit; p99 TPOT over the version's own SLO, whatever base does;
p99 TPOT over the ratio to base; the same for TTFT if asked. Strictly over. Quantiles are those that Prometheus'
``histogram_quantile`` would give, but for interpolation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from tidewheel.crds.rolloutchoices import Metric
from tidewheel.rollout.judge.blocks import Block, Counts, add_counts
from tidewheel.rollout.judge.custom import custom_finding, is_crossed
from tidewheel.rollout.judge.findings import Finding, Standing, milliseconds, percent
from tidewheel.rollout.judge.metrics import RATIO_OF, SLO_OF, WORDS, Latency
from tidewheel.rollout.judge.quantiles import QUANTILES, Quantile, quantile
from tidewheel.rollout.judge.settings import JudgeSettings

_P99: tuple[float, ...] = (0.99,)
_KINDS = {**{metric: kind for kind, metric in SLO_OF.items()}, **{metric: kind for kind, metric in RATIO_OF.items()}}


def literal_findings(
    blocks: Sequence[Block],
    *,
    settings: JudgeSettings,
    edges: Mapping[Latency, Sequence[float]],
    slo: Mapping[Latency, float],
) -> tuple[Finding, ...]:
    """One finding per judged metric; ``slo`` in seconds is the canary's own."""
    looks = [_window(blocks[: len(blocks) - back], settings) for back in range(settings.crossings)]
    found = []
    judged = [metric for metric in settings.judged if metric not in _KINDS or _KINDS[metric] in edges]
    for metric in judged:
        findings = [_look(look, metric, settings=settings, edges=edges, slo=slo) for look in looks if look]
        found.append(_settled(findings, settings))
    for custom in settings.custom:
        recent = [block.custom.get(custom.name) for block in blocks[-settings.crossings :]]
        crossed = [is_crossed(custom, reading) for reading in recent]
        standing = Standing.BREACH if len(crossed) == settings.crossings and all(crossed) else Standing.CLEAR
        if standing is Standing.CLEAR and crossed and crossed[-1]:
            standing = Standing.SUSPECT
        last = recent[-1] if recent else None
        found.append(custom_finding(custom, last, standing=standing, looks=len(blocks), evidence=0.0, needed=inf))
    return tuple(found)


def _window(blocks: Sequence[Block], settings: JudgeSettings) -> list[Block]:
    if not blocks:
        return []
    begin = blocks[-1].end - settings.window_seconds - 1e-6
    return [block for block in blocks if block.start >= begin]


def _settled(findings: Sequence[Finding], settings: JudgeSettings) -> Finding:
    """Over the limit in the last ``crossings`` looks is a breach; in fewer, a suspicion."""
    now = findings[0]
    if not now.is_over_limit:
        return now
    crossed = len(findings) == settings.crossings and all(finding.is_over_limit for finding in findings)
    return replace(now, standing=Standing.BREACH if crossed else Standing.SUSPECT)


def _look(
    window: Sequence[Block],
    metric: Metric,
    *,
    settings: JudgeSettings,
    edges: Mapping[Latency, Sequence[float]],
    slo: Mapping[Latency, float],
) -> Finding:
    requests = [sum(getattr(block, arm).requests for block in window) for arm in ("canary", "base")]
    thin = requests[0] < max(settings.min_samples, 1)
    kind = _KINDS.get(metric)
    if kind is None:
        limit = settings.max_error_rate_increase if metric is Metric.ERRORS else settings.max_stall_rate_increase
        canary, base, estimate, words = _rates(window, metric, requests=requests, limit=limit)
    else:
        pair = [add_counts(getattr(block, arm).latency[kind] for block in window) for arm in ("canary", "base")]
        own = metric in SLO_OF.values()
        limit = slo[kind] if own else settings.max_latency_ratio
        shares = _P99 if own or not settings.every_quantile else QUANTILES
        canary, base, estimate, words = _latencies(
            pair, edges[kind], metric=metric, shares=shares, limit=limit, own=own
        )
    return Finding(
        metric=metric.value,
        standing=Standing.THIN if thin else Standing.CLEAR,
        canary=canary,
        base=base,
        estimate=None if thin else estimate,
        limit=limit,
        canary_samples=requests[0],
        base_samples=requests[1],
        off_scale=kind is not None and canary == edges[kind][-1],
        words=words,
    )


Numbers = tuple[float | None, float | None, float | None, str]


def _rates(window: Sequence[Block], metric: Metric, *, requests: Sequence[float], limit: float) -> Numbers:
    name = "errors" if metric is Metric.ERRORS else "stalls"
    bad = [sum(getattr(getattr(block, arm), name) for block in window) for arm in ("canary", "base")]
    rates = [count / total if total else None for count, total in zip(bad, requests, strict=True)]
    canary, base = rates
    estimate = canary - base if canary is not None and base is not None else None
    shown = f"{WORDS[metric]} canary {bad[0]:.0f}/{requests[0]:.0f}, base {bad[1]:.0f}/{requests[1]:.0f}"
    return canary, base, estimate, f"{shown} (limit +{percent(limit)})"


def _latencies(
    pair: Sequence[Counts], edges: Sequence[float], *, metric: Metric, shares: Sequence[float], limit: float, own: bool
) -> Numbers:
    """Against the SLO, or the worst ratio to base."""
    worst: tuple[float, float, Quantile, Quantile | None] | None = None
    for share in shares:
        canary, base = (quantile(counts, edges, share) for counts in pair)
        if canary is None or (base is None and not own):
            continue
        estimate = canary.value if own or base is None else canary.value / base.value
        if worst is None or estimate > worst[0]:
            worst = (estimate, share, canary, base)
    if worst is None:
        return None, None, None, f"{WORDS[metric]}: no requests to compare"
    estimate, share, mine, other = worst
    against = f", base {milliseconds(other.value)}" if other else ""
    bound = milliseconds(limit) if own else f"{limit:.2f}x"
    name = metric.value.removesuffix("-slo").upper()
    shown = f"{name} p{share * 100:g} canary {milliseconds(mine.value)}{against}"
    ratio = "" if own else f", {estimate:.2f}x"
    return mine.value, other.value if other else None, estimate, f"{shown}{ratio} (limit {bound})"
